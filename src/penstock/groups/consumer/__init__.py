"""The consumer group protocol (KIP-848): heartbeats, target assignments, reconciliation."""
