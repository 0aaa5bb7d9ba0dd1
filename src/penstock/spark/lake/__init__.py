"""Tables of Parquet files to which a stream writes each row exactly once.

    stream.writeStream.format("penstock-lake").option("path", "./lake").option("lakeFormat", "delta")

A task writes its files under names that no other attempt uses (`task_files.py`). The driver then commits
the files of a micro-batch in one step, together with the number of that batch (`lake_sink.py`). A batch whose
number the table already holds is not committed again, whichever attempt requests it. Three formats
implement that step:

    parquet     a log of our own, one JSON file for each commit          commit_log.py, parquet_table.py
    delta       an application transaction in Delta's log                delta_table.py
    iceberg     table properties, changed together with the snapshot     iceberg_table.py
"""
