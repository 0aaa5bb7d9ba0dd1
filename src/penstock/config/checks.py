"""Checks between settings.

Each setting's declaration holds its own bounds. This module checks what only two settings together can
violate. Each check returns sentences instead of raising, so that all problems can be reported at once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from penstock.config.broker import BrokerConfig, ClientAuth
from penstock.config.broker_settings import LISTENER_PREFIX, listener_and_setting
from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.layers import NO_SETTINGS, GivenSettings, group_value_of, topic_value_of, value_of
from penstock.config.listeners import Address
from penstock.limits import LONG_MAX

# Pairs whose first setting must not exceed the second, and why.
_AT_MOST = (
    ("socket.request.max.bytes", "queued.max.request.bytes", "a request has to fit what all requests share"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", "records are cleaned between"),
)
# Pairs whose first setting has no effect above the second, and why. Kafka accepts them, so they only warn.
_INEFFECTIVE_ABOVE = (
    ("message.max.bytes", "socket.request.max.bytes", "a larger batch does not fit a request"),
    ("message.max.bytes", "log.segment.bytes", "a larger batch does not fit a segment"),
)
# Two names of one setting.
_ALIASES = (("node.id", "broker.id"), ("log.dirs", "log.dir"))


def broker_problems(given: GivenSettings, rejected: Collection[str] = ()) -> list[str]:
    """Problems between a broker's settings, apart from settings that were rejected already."""
    problems = [
        f"{small} = {value_of(small, given)}: must be at most {large} = {value_of(large, given)}: {reason}"
        for small, large, reason in _AT_MOST
        if small not in rejected and large not in rejected and value_of(small, given) > value_of(large, given)
    ]
    problems += [
        f"{one} = {given.static[one]}: {other} = {given.static[other]} is another name for it; set only one"
        for one, other in _ALIASES
        if given.static.keys() >= {one, other} and given.static[one] != given.static[other]
    ]
    if not any(name.startswith("log.flush.") for name in rejected):
        problems += _flush_problem("log.", lambda name: topic_value_of(name, NO_SETTINGS, given))
    return problems


def broker_warnings(given: GivenSettings) -> list[str]:
    """Warnings about given settings that do not have the effect they seem to have."""
    return [
        f"{small} = {value_of(small, given)}: without effect above {large} = {value_of(large, given)}: {why}"
        for small, large, why in _INEFFECTIVE_ABOVE
        if any(name in given.static for name in (small, large))
        and value_of(small, given) > value_of(large, given)
    ]


def topic_problems(overrides: Mapping[str, str], given: GivenSettings) -> list[str]:
    """Problems between a topic's settings, with the broker's values where the topic has none."""

    def value(name: str) -> Any:
        return topic_value_of(name, overrides, given)

    problems = list(_flush_problem("", value))
    shortest, longest = value("min.compaction.lag.ms"), value("max.compaction.lag.ms")
    if shortest > longest:
        problems.append(
            f"min.compaction.lag.ms = {shortest}: must be at most max.compaction.lag.ms = {longest}"
        )
    return problems


def group_problems(overrides: Mapping[str, str], given: GivenSettings) -> list[str]:
    """Problems with the settings of one group, with the broker's values where the group has none."""

    def value(name: str) -> int:
        number = group_value_of(name, overrides, given)
        assert isinstance(number, int)
        return number

    problems = []
    for name in sorted(overrides.keys() & GROUP_OVERRIDE_SETTINGS.keys()):
        limits = [f"group.consumer.{end}.{name.removeprefix('consumer.')}" for end in ("min", "max")]
        shortest, longest = (value_of(limit, given) for limit in limits)
        if not shortest <= value(name) <= longest:
            problems.append(
                f"{name} = {value(name)}: must be from {limits[0]} = {shortest} to {limits[1]} = {longest}"
            )
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    if not problems and overrides and value(session) <= value(heartbeat):
        problems.append(f"{session} = {value(session)}: must be more than {heartbeat} = {value(heartbeat)}")
    return problems


def listener_problems(config: BrokerConfig) -> list[str]:
    """Problems between the listeners and the TLS settings."""
    return [*_missing_files(config), *_unknown_listener_keys(config), *_http_port_conflicts(config)]


def _flush_problem(prefix: str, value: Callable[[str], Any]) -> Iterator[str]:
    if value("flush.policy") == "interval" and value("flush.ms") == value("flush.messages") == LONG_MAX:
        interval = "log.flush.interval" if prefix else "flush"
        yield f"{prefix}flush.policy = interval: needs {interval}.ms or {interval}.messages"


def _missing_files(config: BrokerConfig) -> Iterator[str]:
    for name, tls in config.tls.items():
        if not tls.keystore_path:
            yield (
                f"listeners: {name} uses TLS and needs ssl.keystore.location,"
                " a PEM file with the private key and the certificate chain"
            )
        if tls.client_auth is not ClientAuth.NONE and not tls.truststore_path:
            yield f"ssl.client.auth = {tls.client_auth}: {name} needs ssl.truststore.location to check with"


def _http_port_conflicts(config: BrokerConfig) -> Iterator[str]:
    http = config.http
    for listener in config.listeners:
        address = Address(listener.host, listener.port)
        meet = http.host == address.host or http.is_wildcard or address.is_wildcard
        if http.port and http.port == address.port and meet:
            yield f"http.listener = '{http}': listener {listener.name} is on {address}; give one another port"


def _unknown_listener_keys(config: BrokerConfig) -> Iterator[str]:
    names = {listener.name.lower() for listener in config.listeners}
    for key in config.given.static:
        name, _ = listener_and_setting(key)
        if name is not None and name not in names:
            yield f"{key}: no listener is called {name!r} (names are in lower case after {LISTENER_PREFIX})"
