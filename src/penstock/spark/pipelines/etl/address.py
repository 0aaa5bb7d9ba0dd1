"""Database addresses: parsing, display without the password, and connecting.

A PostgreSQL address is parsed here, by the rules of libpq, and libpq receives the parts by name. The reason:
libpq quotes an invalid address in its error message, with the password.

Rule 1: an error about an invalid address names the violated rule and quotes no part of the address: if a
        reserved character is not percent-encoded, any part may contain a piece of the password.
Rule 2: only an address that was parsed successfully is displayed.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import psycopg

from penstock.errors import CommandFailed

CONNECT_S: Final = 10
SQLITE: Final = "sqlite:///"
SCHEMES: Final = ("postgresql://", "postgres://", SQLITE)
VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_NOT_QUOTED: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:@\[\]]*)(?::(?P<port>\d*))?")
_REMEDY: Final = (
    "Write it as postgresql://user:password@host:port/database, and / @ : ? # & % in a name or a password "
    "as %2F %40 %3A %3F %23 %26 %25"
)


class InvalidAddress(CommandFailed):
    def __init__(self, problem: str) -> None:
        super().__init__(f"the address of the database cannot be read: {problem}. {_REMEDY}")


class _Parts(NamedTuple):
    user: str
    password: str
    hosts: str
    database: str
    settings: str
    """Every part as written, still percent-encoded."""


def _parts(url: str) -> _Parts:
    scheme = next((each for each in SCHEMES if url.startswith(each)), None)
    if scheme is None or scheme == SQLITE:
        raise InvalidAddress("it does not begin with postgresql://")
    rest = url.removeprefix(scheme)
    user = password = ""
    # An @ after the first / is not part of the credentials.
    if "@" in rest.partition("/")[0]:
        credentials, _, rest = rest.partition("@")
        user, _, password = credentials.partition(":")
    place, _, settings = rest.partition("?")
    hosts, _, database = place.partition("/")
    if "@" in place or "/" in database:
        raise InvalidAddress("it has an @ or a / too many")
    if _NOT_QUOTED.search(url):
        raise InvalidAddress("it has a % that no two digits follow")
    return _Parts(user, password, hosts, database, settings)


def postgres_settings(url: str) -> dict[str, str]:
    """Return the settings under libpq's names; raise InvalidAddress for an invalid address."""
    parts = _parts(url)
    found = {"user": parts.user, "password": parts.password, "dbname": parts.database}
    found = {name: unquote(value) for name, value in found.items()}
    hosts = [_HOST.fullmatch(each) for each in parts.hosts.split(",")]
    if any(each is None for each in hosts):
        raise InvalidAddress("what should be a host and a port is none")
    found["host"] = ",".join(unquote(each["host"].strip("[]")) for each in hosts if each)
    ports = [each["port"] or "" for each in hosts if each]
    found["port"] = ",".join(ports) if any(ports) else ""
    return {name: value for name, value in (found | _settings(parts.settings)).items() if value}


def _settings(text: str) -> dict[str, str]:
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    found: dict[str, str] = {}
    for each in text.split("&") if text else []:
        name, equals, value = each.partition("=")
        if not equals or "=" in value:
            raise InvalidAddress("behind the ? stand no settings, as in ?sslmode=require&user=me")
        if (name, value) == ("ssl", "true"):
            name, value = "sslmode", "require"
        if name not in known:
            raise InvalidAddress("behind the ? stands the name of a setting that PostgreSQL does not know")
        found[name] = unquote(value)
    return found


def connect_postgres(url: str, *, autocommit: bool = False) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect; raises InvalidAddress, or psycopg.Error if the connection fails."""
    settings: dict[str, Any] = {"connect_timeout": CONNECT_S, **postgres_settings(url)}
    return psycopg.connect(autocommit=autocommit, **settings)


def without_password(url: str) -> str:
    """Return the address for messages and notes, without its password."""
    if url.startswith(SQLITE):
        return url
    try:
        postgres_settings(url)
    except InvalidAddress:
        # No part is shown: any part may contain a piece of the password (rule 1).
        return "postgresql://..."
    parts = _parts(url)
    user = f"{parts.user}@" if parts.user else ""
    database = f"/{parts.database}" if parts.database else ""
    return f"{url.partition('://')[0]}://{user}{parts.hosts}{database}"


def with_variables(template: str, variables: Mapping[str, str]) -> str:
    """Replace each `${NAME}`; percent-encode values in the credentials and settings, as addresses require."""
    if VARIABLE.fullmatch(template) is not None or template.startswith(SQLITE):
        return VARIABLE.sub(lambda match: variables[match[1]], template)
    start = template.find("://") + len("://")
    credentials_end = template.find("@", start, _first_slash(template, start))
    settings_start = template.find("?", max(credentials_end, start))

    def replaced(match: re.Match[str]) -> str:
        value = variables[match[1]]
        is_credential = match.start() < credentials_end
        is_setting = settings_start >= 0 and match.start() > settings_start
        return quote(value, safe="") if is_credential or is_setting else value

    return VARIABLE.sub(replaced, template)


def _first_slash(text: str, start: int) -> int:
    found = text.find("/", start)
    return len(text) if found < 0 else found
