"""Simulated faults: crashes, network partitions, bit rot, ambushes, deposed leaders."""
