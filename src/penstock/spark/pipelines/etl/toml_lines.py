"""In which line of a TOML file a key stands. Pure.

The parser of the standard library does not say. So lines are looked through for headers and keys; where a
key is written in another way (dotted, in an inline table), the line of its table is the answer.
"""

import re
from typing import Final

_HEADER: Final = re.compile(r"\s*\[+\s*(?P<name>[^\[\]]+?)\s*\]+\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+|\"[^\"]+\"|'[^']+')\s*[.=]")
_MARKS: Final = ('"""', "'''")


def line_of(text: str, table: str, key: str | None = None) -> int | None:
    """Counted from 1. `table` is empty for what stands above all headers. None if it is not there."""
    current, header = "", 1 if table == "" else None
    open_mark = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if open_mark:
            open_mark = "" if line.count(open_mark) % 2 else open_mark
            continue
        if match := _HEADER.match(line):
            current = match["name"].replace(" ", "").replace('"', "")
            header = number if current == table else header
        elif (match := _KEY.match(line)) and current == table and match["name"].strip("\"'") == key:
            return number
        open_mark = next((mark for mark in _MARKS if line.count(mark) % 2), "")
    return header
