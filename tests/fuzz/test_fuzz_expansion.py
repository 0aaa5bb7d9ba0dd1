"""The smallest elements that the wire allows, by the thousand: how much memory decoding makes of them.

What waits for its answer is charged DECODED_BYTES_PER_BYTE for each byte of its frame, so no request
may become more than that. `python -m tests.fuzz.test_fuzz_expansion` prints the worst of each API.
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.limits import DECODED_BYTES_PER_BYTE
from penstock.protocol.apis import ALL
from penstock.protocol.compiler import decoder, encode
from penstock.protocol.schema import Api, Blob, FieldSpec, Fixed, Nested, Struct, Text, fields_of

ELEMENTS = 1_000
UUID_BYTES = 16


class Expansion(NamedTuple):
    factor: float
    version: int
    array: str
    frame_bytes: int


def smallest(message: type[msgspec.Struct], version: int, **given: Any) -> Any:
    """Everything empty, apart from what is given."""
    values = dict(given)
    for field in fields_of(message):
        if field.name not in values and field.is_in(version) and field.tag is None:
            if field.is_array:
                values[field.name] = []
            elif isinstance(field.kind, Text | Blob):
                values[field.name] = None if field.is_nullable(version) else _empty(field)
    return message(**values)


def _empty(field: FieldSpec) -> Any:
    match field.kind:
        case Text():
            return ""
        case Fixed(size=size) if size == UUID_BYTES:
            return bytes(UUID_BYTES)
        case Fixed():
            return 0
        case _:
            return b""


def crowded(message: type[msgspec.Struct], version: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each array at any depth with so many smallest elements; and so many elements with one each."""
    for field in fields_of(message):
        if not field.is_in(version) or not field.is_array:
            continue
        if not isinstance(field.kind, Nested):
            yield field.name, {field.name: [_empty(field)] * count}
            continue
        inner = field.kind.message
        yield field.name, {field.name: [smallest(inner, version) for _ in range(count)]}
        for name, values in crowded(inner, version, count):
            yield f"{field.name}.{name}", {field.name: [smallest(inner, version, **values)]}
        for name, values in crowded(inner, version, 1):
            many = [smallest(inner, version, **values) for _ in range(count)]
            yield f"{field.name} with one of {name}", {field.name: many}


def telling_versions(api: Api[Struct, Struct]) -> list[int]:
    """The oldest, the newest, and the first in which elements may be as small as a byte."""
    first, last = api.versions
    return sorted({first, max(first, min(last, api.flexible or first)), last})


def bytes_held_by(make: Callable[[], object]) -> int:
    gc.disable()  # a collection would take longer than all the rest
    tracemalloc.start()
    try:
        made = make()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert made
    return held_bytes


def worst_expansion(api: Api[Struct, Struct]) -> Expansion:
    worst = Expansion(0.0, api.versions[0], "", 0)
    for version in telling_versions(api):
        is_flexible = api.is_flexible(version)
        decode = decoder(api.request, version, is_flexible)
        for name, values in crowded(api.request, version, ELEMENTS):
            message = smallest(api.request, version, **values)
            frame = memoryview(b"".join(encode(api.request, version, is_flexible, message)))
            held_bytes = bytes_held_by(partial(decode, frame, 0))
            worst = max(worst, Expansion(held_bytes / len(frame), version, name, len(frame)))
    return worst


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_a_decoded_request_is_never_larger_than_it_is_counted(api: Api[Struct, Struct]) -> None:
    assert worst_expansion(api).factor < DECODED_BYTES_PER_BYTE


if __name__ == "__main__":
    for each in sorted(ALL, key=lambda api: api.key):
        found = worst_expansion(each)
        print(f"| {each.name} | {found.factor:.0f} | {found.array or 'no arrays'} | {found.version} |")
