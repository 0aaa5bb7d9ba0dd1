"""How fast Penstock is, and what it costs: one file a question, run by `python -m benchmarks.run`."""
