"""Registration of `format("penstock")` where Spark does not find it by itself."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession", *, ship: bool = False) -> None:
    """Register the format in this session.

    This is not needed where Penstock is installed beside Spark, because Spark finds it. With `ship`, the
    code is sent to executors that do not have it, for example from a notebook.
    """
    if ship:
        from penstock.spark.runtime.code_shipping import code_carrying_data_source

        spark.dataSource.register(code_carrying_data_source())
        return
    from pyspark_penstock import DefaultSource

    spark.dataSource.register(DefaultSource)
