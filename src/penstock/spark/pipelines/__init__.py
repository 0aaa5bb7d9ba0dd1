"""Ready-made programs that teams usually build around a message queue, on plain Structured Streaming.

Each pipeline is a folder with its settings, a function that runs the pipeline in a given Spark session, and a
report. Shared parts are in `common/`: `checkpoint.py` (binds a checkpoint to one pipeline), `query_run.py`
(runs a query from its start to its end), `progress.py` (parses what a running query reports), `report.py`
(formats the report at the end).
"""
