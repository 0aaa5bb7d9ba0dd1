"""Simulation of a whole cluster: three to five production brokers, driven by one seed."""
