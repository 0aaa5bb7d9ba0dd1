"""What teams build around a queue, as small programs on plain Structured Streaming.

Each pipeline is a module with its settings, a function that runs it in a given Spark session, and a report.
What they share: `checkpoint.py` (whose a checkpoint is), `common/query_run.py` (from the start of a query to its
end), `progress.py` (what a running query says of itself), `report.py` (what is told at the end).
"""
