"""What tests of every kind share."""

import re
import zlib

import pytest

NAME_CHARACTERS_MAX = 200


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, so that tests can share a broker."""
    readable = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name.removeprefix("test_"))
    return f"{readable[:NAME_CHARACTERS_MAX]}-{zlib.crc32(request.node.nodeid.encode()):08x}"
