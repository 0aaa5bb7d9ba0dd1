"""Transactions of one partition's log: which are open, and which were aborted."""
