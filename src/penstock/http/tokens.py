"""The file of tokens that authorize changes over HTTP.

A line has the SHA-256 of a token in hexadecimal and a name. Empty lines and lines that begin with # are
skipped. Tokens are long and random, so a plain hash reveals nothing about them.
"""

import re
from typing import Final, NamedTuple

from penstock.errors import ConfigError
from penstock.limits import HTTP_TOKENS_FILE_BYTES_MAX

_LINE: Final = re.compile(r"(?P<digest>[0-9a-fA-F]{64})[ \t]+(?P<name>\S.*)")


class Token(NamedTuple):
    name: str
    digest: str
    """SHA-256 of the token, in hexadecimal."""


def read_tokens(path: str) -> list[Token]:
    """Read the tokens. ConfigError if the file cannot be read, or if a line is not valid."""
    try:
        with open(path, "rb") as file:
            data = file.read(HTTP_TOKENS_FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise ConfigError(f"http.tokens.file = {path!r} cannot be read: {problem.strerror}") from problem
    if len(data) > HTTP_TOKENS_FILE_BYTES_MAX:
        raise ConfigError(f"http.tokens.file = {path!r} has more than {HTTP_TOKENS_FILE_BYTES_MAX} bytes")
    tokens = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"line {number} of http.tokens.file = {path!r} is not the SHA-256 of a token in hexadecimal "
                "and a name"
            )
        tokens.append(Token(found["name"], found["digest"].lower()))
    if not tokens:
        raise ConfigError(f"http.tokens.file = {path!r} holds no token")
    return tokens
