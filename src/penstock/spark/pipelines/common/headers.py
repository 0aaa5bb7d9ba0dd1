"""Record headers as columns: fixed names with text values taken from rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.spark.payload.dead_letters import OFFSET_HEADER, PARTITION_HEADER, TOPIC_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column


def header_array(header_texts: "Mapping[str, Column]") -> "Column":
    """Return headers in the form that `format("penstock")` writes, in this order."""
    from pyspark.sql import functions as f

    return f.array(
        *(
            f.struct(f.lit(name).alias("key"), text.cast("string").cast("binary").alias("value"))
            for name, text in header_texts.items()
        )
    )


def source_headers(topic: "Column") -> "dict[str, Column]":
    """Return headers that identify the source record of a row, from the columns `partition` and `offset`."""
    from pyspark.sql import functions as f

    return {TOPIC_HEADER: topic, PARTITION_HEADER: f.col("partition"), OFFSET_HEADER: f.col("offset")}
