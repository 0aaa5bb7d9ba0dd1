"""Simulated faults: crashes, network cuts, bit rot, ambushes, deposed leaders."""
