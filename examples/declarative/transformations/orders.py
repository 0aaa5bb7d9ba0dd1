"""Orders of a topic, and what each customer has spent.

`orders` is a streaming table: each run reads what is new in the topic, and adds it. `spent` is a materialized
view: each run makes it from all of `orders`.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    records = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("shop.bootstrap"))
        .option("subscribe", spark.conf.get("shop.topic"))
        .option("startingOffsets", "earliest")
        .option("kafka.group.id", "shop-orders")  # shows how far behind the table is
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "id bigint, customer string, amount double")
    return records.select("partition", "offset", "timestamp", order.alias("order")).select(
        "partition", "offset", "timestamp", "order.*"
    )


@dp.materialized_view
def spent() -> DataFrame:
    by_customer = spark.read.table("orders").groupBy("customer")
    return by_customer.agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
