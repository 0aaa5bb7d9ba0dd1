"""Kafka's wire protocol without a socket: messages, frames, record batches, compression."""
