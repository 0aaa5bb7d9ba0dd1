"""Invariants of a simulated cluster, checked from outside of the brokers."""
