"""Offset ranges of topics as a DataFrame; the offsets are fixed before Spark starts."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.spark.source.offsets import OffsetRange, to_document
from penstock.spark.topic_table import full_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_records(
    spark: "SparkSession", access: Mapping[str, str], ranges: Sequence[OffsetRange], columns: Sequence[str]
) -> "DataFrame":
    """Read the ranges, decoding only these columns. Records that retention removes meanwhile are skipped."""
    from pyspark.sql.types import StructType

    full = full_schema(include_headers=True, include_beyond=True)
    schema = StructType([full[name] for name in columns])
    if not ranges:
        return spark.createDataFrame([], schema)
    partitions: dict[str, list[int]] = {}
    for each in ranges:
        partitions.setdefault(each.partition.topic, []).append(each.partition.partition)
    options = {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(to_document({each.partition: each.start for each in ranges})),
        "endingOffsets": json.dumps(to_document({each.partition: each.end for each in ranges})),
        "includeHeaders": "true",
        # The ranges are fixed; retention may pass their start while the query runs.
        "failOnDataLoss": "false",
    }
    return spark.read.format("penstock").options(**access, **options).schema(schema).load()
