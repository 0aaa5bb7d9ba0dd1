"""Line numbers of keys in a TOML file, for error messages. Pure.

The parser of the standard library reports no line numbers. So the lines are searched for headers and keys.
For a key that is written in another way (dotted, or in an inline table), the result is the line of its table.
"""

import re
from typing import Final

_HEADER: Final = re.compile(r"\s*\[+\s*(?P<name>[^\[\]]+?)\s*\]+\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+|\"[^\"]+\"|'[^']+')\s*[.=]")
_MARKS: Final = ('"""', "'''")


def find_line(text: str, table: str, key: str | None = None) -> int | None:
    """Return the line, counted from 1, or None. `table` is empty for keys above all headers."""
    current, header = "", 1 if table == "" else None
    open_mark = ""
    for number, line in enumerate(text.splitlines(), start=1):
        # Inside a multi-line string, lines are no keys.
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
