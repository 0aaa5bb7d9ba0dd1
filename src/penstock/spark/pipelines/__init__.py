"""What teams build around a queue, as small programs on plain Structured Streaming.

Each pipeline is a folder with its settings, a function that runs it in a given Spark session, and a report.
Shared parts are in `common/`: `checkpoint.py` (one pipeline owns a checkpoint), `query_run.py` (a query from
its start to its end), `progress.py` (what a running query reports), `report.py` (the report at the end).
"""
