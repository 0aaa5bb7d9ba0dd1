"""Schema changes of a table: columns may be added, and everything else stays.

The functions are pure, apart from Arrow's types.
"""

import pyarrow as pa

from penstock.spark.lake.lake_table import LakeTableError


def with_utc_timestamps(schema: pa.Schema) -> pa.Schema:
    """The schema as files have it. Spark passes times in its session's zone, and Delta accepts only UTC."""
    return pa.schema(
        [field.with_type(_with_utc_timestamps(field.type)) for field in schema.remove_metadata()]
    )


def _with_utc_timestamps(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_utc_timestamps(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_utc_timestamps(kind.value_type)))
    return kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """One common name for a type that two libraries name differently."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return kind


def with_plain_types(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def new_fields(table: pa.Schema, given: pa.Schema) -> list[pa.Field]:
    """The columns that `given` adds. Columns that `given` lacks are null in its files."""
    added = []
    for field in given:
        index = table.get_field_index(field.name)
        if index < 0:
            added.append(field.with_nullable(True))
            continue
        known = table.field(index).type
        if not plain_type(known).equals(plain_type(field.type)):
            raise LakeTableError(
                f"column {field.name} of the table is {known} and cannot become {field.type}: "
                "write to another folder, or give the new column another name"
            )
    return added


def widen_schema(table: pa.Schema, given: pa.Schema) -> pa.Schema:
    fields = [field.with_nullable(True) for field in table]
    return pa.schema([*fields, *new_fields(table, given)])


def conform_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of `schema`, null where a file is older than a column."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
