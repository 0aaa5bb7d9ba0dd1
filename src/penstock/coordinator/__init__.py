"""Replicated state machines: each one keeps its state in a partition of an internal topic."""
