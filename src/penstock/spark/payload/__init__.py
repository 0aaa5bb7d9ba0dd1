"""Values of records as columns.

    spark.read.format("penstock").option("valueFormat", "json").option("valueSchema", "orders.json")

A schema file says the columns (`schema_files.py`). A reader of one format makes a Python object of each
value, or a sentence that says why it cannot (`json_values.py`, `avro_values.py`,
`protobuf_values.py`). Objects become columns many at a time (`shapes.py`). What happens with values that
cannot be read is one decision for all formats (`payload.py`, `dead_letters.py`).
"""

from penstock.spark.payload.dead_letters import split_dead_letters, with_dead_letters
from penstock.spark.payload.payload import BadValue, Payload

__all__ = ["BadValue", "Payload", "split_dead_letters", "with_dead_letters"]
