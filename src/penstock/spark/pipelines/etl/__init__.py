"""`etl`: rows on their way from where they are to where they are wanted, in stages.

    files, table, topic ──▶ extract ──▶ transform ──▶ enrich ──▶ load ──▶ Delta, Parquet, PostgreSQL, topic

Between two stages lies a topic, so each stage is a query of its own with a checkpoint, a group that shows
its lag, and a process of its own if that is wanted. A stage that dies leaves the others running.

    spec.py, spec_file.py, toml_lines.py     what one file says about all stages, and what is wrong with it
    rows.py                              rows as records of a stage's topic, and back
    extract*.py                          from files, tables and topics      (database*.py, settled_end.py)
    transform.py, enrich.py              what happens to rows
    load.py                              to where they are wanted           (postgres*.py)
    stage_topic.py, stage_sink.py        writes a stage's topic, and not twice after a crash or a retry
    address.py                           of databases, without a password where it is shown
    stages.py, run.py                    from a spec to running queries and a report
"""
