"""Formatting of the report at the end of a pipeline: lines for users, a document for scripts."""

from collections.abc import Mapping
from typing import Any

from penstock.limits import GIB, KIB, MIB

ReportValue = str | int | float | None


def document(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for JSON, with floats rounded to three decimals."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


def lines(rows: Mapping[str, ReportValue]) -> list[str]:
    """Return aligned lines of name and value. Values that are None are omitted."""
    shown = {name: value for name, value in rows.items() if value is not None}
    width = max(map(len, shown), default=0)
    return [f"{name.ljust(width)}  {text(value)}" for name, value in shown.items()]


def text(value: ReportValue) -> str:
    match value:
        case float():
            return f"{value:,.1f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def size_text(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
