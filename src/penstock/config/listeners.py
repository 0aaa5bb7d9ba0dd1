"""Listeners: the addresses that the broker binds, and the addresses that it advertises to clients.

`listeners` sets the addresses that the broker binds, `advertised.listeners` those that clients receive, and
`listener.security.protocol.map` the protocol of each listener's name.

Rule 1: the broker never advertises an address that clients cannot connect to: binding every address (0.0.0.0,
        ::) requires an advertised one.
Rule 2: nothing is open to other machines unprotected unless the operator allows it (--insecure).
Rule 3: every problem is found and reported, not only the first.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.errors import ConfigError

PORT_MAX = 65_535
ADDRESS_FORM = f"host:port, the port a number from 0 to {PORT_MAX}"

_LISTENER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{0,253}):(?P<port>[0-9]{1,5})", re.ASCII
)
_HOST = re.compile(r"\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}", re.ASCII)
_WILDCARD = re.compile(r"[0:.]*", re.ASCII)
_LOOPBACK = re.compile(r"127(\.[0-9]{1,3}){3}|::1|localhost", re.ASCII)


class SecurityProtocol(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"


# Protocols that Kafka has, so that the error message can be more specific than "unknown".
_WITH_USERS = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        return _WILDCARD.fullmatch(self.host) is not None

    @property
    def is_loopback(self) -> bool:
        return _LOOPBACK.fullmatch(self.host.lower()) is not None


class Listener(NamedTuple):
    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    """0 binds any free port."""
    advertised_host: str
    advertised_port: int
    """0 stands for the port that was bound."""

    def bound_to(self, port: int) -> "Listener":
        """The same listener once its port is known."""
        return self._replace(port=port, advertised_port=self.advertised_port or port)


def parse_address(text: str) -> Address | None:
    """Parse host:port, with an IPv6 host in brackets. An empty host stands for every address."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > PORT_MAX:
        return None
    return Address(_bare(found["host"]) or "0.0.0.0", int(found["port"]))  # noqa: S104


def parse_http(text: str, *, insecure: bool) -> Address:
    address = parse_address(text)
    if address is None:
        raise ConfigError(f"http.listener = {text!r}: must be {ADDRESS_FORM}")
    if not (insecure or address.is_loopback):
        raise ConfigError(_unprotected("http.listener", text))
    return address


def advertise(text: str, listeners: Sequence[str]) -> str:
    """The value of advertised.listeners for `--advertised host[:port]` and the only listener."""
    if len(listeners) != 1:
        raise ConfigError(
            f"--advertised {text}: there are {len(listeners)} listeners; say which is meant with"
            " --set advertised.listeners=NAME://host:port,..."
        )
    name = listeners[0].partition("://")[0]
    if _HOST.fullmatch(text):
        return f"{name}://{text}:0"
    if parse_address(text) is None:
        raise ConfigError(f"--advertised {text!r}: must be host or {ADDRESS_FORM}")
    return f"{name}://{text}"


def parse_listeners(
    listeners: Sequence[str],
    advertised: Sequence[str],
    protocol_map: Sequence[str],
    *,
    insecure: bool = False,
) -> tuple[Listener, ...]:
    """The listeners, in the order they were given."""
    problems: list[str] = []
    protocols = _parse_protocol_map(protocol_map, problems)
    bound = _parse_entries("listeners", listeners, problems)
    advertised_as = _parse_entries("advertised.listeners", advertised, problems)
    problems += [
        f"advertised.listeners = '{name}://{address}': no listener is called {name}"
        for name, address in advertised_as.items()
        if name not in bound
    ]
    problems += _shared_addresses(bound)
    found = []
    for name, address in bound.items():
        try:
            found.append(_listener(name, address, advertised_as.get(name), protocols, insecure=insecure))
        except ConfigError as problem:
            problems.append(str(problem))
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(found)


def _listener(
    name: str, address: Address, advertised_as: Address | None, protocols: dict[str, str], *, insecure: bool
) -> Listener:
    entry = f"{name}://{address}"
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"listeners = {entry!r}: listener.security.protocol.map gives {name} no protocol;"
            f" add {name}:PLAINTEXT or {name}:SSL"
        )
    if protocol in _WITH_USERS:
        raise ConfigError(
            f"listeners = {entry!r}: {protocol} comes with users, which are not supported yet;"
            " use PLAINTEXT or SSL"
        )
    if not (insecure or address.is_loopback or protocol == SecurityProtocol.SSL):
        raise ConfigError(_unprotected("listeners", entry))
    if advertised_as is None and address.is_wildcard:
        raise ConfigError(
            f"listeners = {entry!r}: clients cannot connect to {address.host};"
            " say what they should use with --advertised host:port or advertised.listeners"
        )
    if advertised_as is not None and advertised_as.is_wildcard:
        raise ConfigError(
            f"advertised.listeners = '{name}://{advertised_as}': clients cannot connect to"
            f" {advertised_as.host};"
            " name an address or a host"
        )
    return Listener(name, SecurityProtocol(protocol), *address, *(advertised_as or address))


def _unprotected(key: str, entry: str) -> str:
    remedy = "give it TLS, listen on 127.0.0.1" if key == "listeners" else "listen on 127.0.0.1"
    return (
        f"{key} = {entry!r}: is open to other machines without protection; {remedy},"
        " or allow it with --insecure"
    )


def _parse_entries(key: str, entries: Sequence[str], problems: list[str]) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for entry in entries:
        name, separator, rest = entry.partition("://")
        address = parse_address(rest)
        if not separator or address is None or not _LISTENER_NAME.fullmatch(name):
            problems.append(f"{key} = {entry!r}: must be NAME://{ADDRESS_FORM}")
        elif name.upper() in found:
            problems.append(f"{key} = {entry!r}: the name {name.upper()} is used twice")
        else:
            found[name.upper()] = address
    return found


def _shared_addresses(bound: dict[str, Address]) -> list[str]:
    seen: dict[Address, str] = {}
    problems = []
    for name, address in bound.items():
        if address.port and address in seen:
            problems.append(f"listeners = '{name}://{address}': the same address as listener {seen[address]}")
        seen.setdefault(address, name)
    return problems


def _parse_protocol_map(entries: Sequence[str], problems: list[str]) -> dict[str, str]:
    key = "listener.security.protocol.map"
    known = _WITH_USERS.union(SecurityProtocol)
    found: dict[str, str] = {}
    for entry in entries:
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if protocol not in known or not _LISTENER_NAME.fullmatch(name):
            problems.append(f"{key} = {entry!r}: must be NAME:PLAINTEXT or NAME:SSL")
        elif found.setdefault(name, protocol) != protocol:
            problems.append(f"{key} = {entry!r}: {name} was already given {found[name]}")
    return found


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")
