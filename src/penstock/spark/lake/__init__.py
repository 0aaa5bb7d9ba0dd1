"""Tables of Parquet files that a stream is written to exactly once.

    stream.writeStream.format("penstock-lake").option("path", "./lake").option("lakeFormat", "delta")

Tasks write files under names that no other attempt uses (`task_files.py`). The driver then commits all files
of a micro-batch in one step, together with the number of that batch (`sink.py`). A batch whose number the
table already holds is not committed again, whoever asks. Three formats do that step, each in its own way:

    parquet     a log of our own, one JSON file for each commit          manifest.py, parquet_table.py
    delta       an application transaction in Delta's log                delta_table.py
    iceberg     table properties, changed together with the snapshot     iceberg_table.py
"""
