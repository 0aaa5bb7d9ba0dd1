"""Benchmarks of Penstock: one file for each question, run by `python -m benchmarks.run`."""
