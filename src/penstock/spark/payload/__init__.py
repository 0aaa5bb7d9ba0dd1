"""Record values as columns.

    spark.read.format("penstock").option("valueFormat", "json").option("valueSchema", "orders.json")

A schema file defines the columns (`schema_files.py`). The reader of a format converts each value to a
Python object, or returns a sentence with the reason why it cannot (`json_values.py`, `avro_values.py`,
`protobuf_values.py`). Many objects at a time become columns (`shapes.py`). The handling of values that
cannot be read is the same for all formats (`payload.py`, `dead_letters.py`).
"""

from penstock.spark.payload.dead_letters import split_dead_letters, with_dead_letters
from penstock.spark.payload.payload import BadValue, Payload

__all__ = ["BadValue", "Payload", "split_dead_letters", "with_dead_letters"]
