"""Detection of replies that reject all of their request.

A reply has error codes for the whole request, for its parts (topics, partitions, groups, resources), or for
both. It is a rejection if the top-level code is an error, or if there are parts and each of them has an
error.

Every reply is checked. So the positions of the codes are computed once per reply type, and the first
accepted part, mostly the first of all, ends the search.
"""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from penstock.protocol.schema import Struct

_CODE = "error_code"
_Check = Callable[[Any], bool]


def is_rejection(reply: Struct) -> bool:
    check = _check_of(type(reply))
    return check is not None and check(reply)


@cache
def _check_of(kind: type) -> _Check | None:
    """Build the check for a struct type; None if the type has no error codes."""
    hints = get_type_hints(kind)
    parts = [
        (name, check)
        for name, hint in hints.items()
        for listed in _listed_in(hint)
        if (check := _check_of(listed)) is not None
    ]
    if _CODE not in hints:
        return _all_of(parts) if parts else None
    if not parts:
        return _has_code
    are_rejected = _all_of(parts)
    return lambda struct: bool(struct.error_code) or are_rejected(struct)


def _has_code(struct: Any) -> bool:
    return bool(struct.error_code)


def _all_of(parts: list[tuple[str, _Check]]) -> _Check:
    checks = [(attrgetter(name), check) for name, check in parts]

    def are_rejected(struct: Any) -> bool:
        # A reply without parts rejects nothing.
        is_any = False
        for listed, check in checks:
            for part in listed(struct) or ():
                if not check(part):
                    return False
                is_any = True
        return is_any

    return are_rejected


def _listed_in(hint: Any) -> list[type]:
    """Struct types that a field of this type lists."""
    if get_origin(hint) is not list:
        return [found for each in get_args(hint) for found in _listed_in(each)]
    return [each for each in get_args(hint) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
