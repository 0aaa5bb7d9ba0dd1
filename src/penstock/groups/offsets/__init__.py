"""Committed offsets: commits, expiry, lag and consume rates."""
