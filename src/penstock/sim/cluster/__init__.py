"""Whole production brokers, three to five of them, in a simulated world, from one seed."""
