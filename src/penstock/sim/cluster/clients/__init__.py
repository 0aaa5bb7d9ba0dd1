"""Simulated clients: producers, consumers, group members, an administrator."""
