"""`etl`: moves rows from a source through transformations to a sink, in stages.

    files, table, topic ──▶ extract ──▶ transform ──▶ enrich ──▶ load ──▶ Delta, Parquet, PostgreSQL, topic

Two stages are connected by a topic. So each stage is a query with its own checkpoint, a group that reports
its lag, and, if configured, its own process. A stage that fails leaves the other stages running.

    spec.py, spec_file.py, toml_lines.py     parse and validate the one file that describes all stages
    rows.py                              convert rows to records of a stage's topic, and back
    extract*.py                          read files, tables and topics      (database*.py, settled_end.py)
    transform.py, enrich.py              change and join rows
    load.py                              write rows to the destination      (postgres*.py)
    stage_topic.py, stage_sink.py        write a stage's topic without duplicates after a crash or a retry
    address.py                           database addresses, displayed without their password
    stages.py, etl.py                    turn a spec into running queries and a report
"""
