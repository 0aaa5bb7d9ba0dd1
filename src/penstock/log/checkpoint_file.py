"""Small text files that are replaced as a whole, in Kafka's checkpoint format.

0            version
2            number of rows
0 0          a row
3 1200
"""

from collections.abc import Iterable, Iterator

from penstock.errors import CorruptData

VERSION = 0


def render_rows(rows: Iterable[str]) -> bytes:
    lines = list(rows)
    return "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode()


def parse_rows(data: bytes, name: str, *, columns: int) -> Iterator[tuple[int, ...]]:
    try:
        version, count, *rows = data.decode().splitlines()
        if int(version) != VERSION:
            raise CorruptData(f"{name} has version {version}; this broker knows version {VERSION}")
        if int(count) != len(rows):
            raise CorruptData(f"{name} announces {count} rows and has {len(rows)}")
        for row in rows:
            values = tuple(int(word) for word in row.split())
            if len(values) != columns:
                raise CorruptData(f"{name} has a row of {len(values)} numbers where {columns} belong")
            yield values
    except ValueError as error:
        raise CorruptData(f"{name} is not a checkpoint file: {error}") from error
