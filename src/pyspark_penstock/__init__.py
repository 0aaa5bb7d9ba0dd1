"""Makes `format("penstock")` known to Spark, which looks for modules whose names begin so.

Spark imports this in every session that uses any Python data source, so nothing heavy is imported
before it is needed.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> "StructType":
        from penstock.spark.source.source import table_schema

        return table_schema(self.options)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from penstock.spark.source.source import BatchReader

        return BatchReader.from_options(self.options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        from penstock.spark.source.stream_source import StreamReader

        return StreamReader.from_options(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from penstock.spark.topic_sink import BatchWriter

        return BatchWriter.from_options(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        from penstock.spark.topic_sink import TopicStreamWriter

        return TopicStreamWriter.from_options(self.options, schema)
