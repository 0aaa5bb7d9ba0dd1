"""The options that describe the connection to a cluster: addresses, timeout, TLS.

The functions are pure: files named in options are opened where a connection is made, on every machine.
"""

from typing import Final, NamedTuple

from penstock.config.listeners import Address, parse_address
from penstock.errors import ConfigError
from penstock.host.tls import ClientTls
from penstock.limits import INT_MAX
from penstock.spark.options.values import SourceOptions, parse_choice

CLIENT_ID: Final = "penstock-spark"
_TIMEOUT_S: Final = 60.0


class ClusterAccess(NamedTuple):
    """How to connect to the cluster."""

    bootstrap: tuple[Address, ...]
    client_id: str = CLIENT_ID
    timeout_s: float = _TIMEOUT_S
    tls: ClientTls | None = None
    """Its files must exist on the driver and on every executor."""


def parse_access(given: SourceOptions) -> ClusterAccess:
    servers = given.first_given(("kafka.bootstrap.servers", "bootstrap"))
    if servers is None:
        raise ConfigError("option kafka.bootstrap.servers must say where a broker is: host:port")
    name, text = servers
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    addresses = [parse_address(entry) for entry in entries]
    if not addresses or None in addresses:
        raise ConfigError(f"option {name} is {text!r}; give host:port, or several with commas")
    timeout = given.number("kafka.default.api.timeout.ms", most=INT_MAX)
    timeout = timeout or given.number("kafka.request.timeout.ms", most=INT_MAX)
    return ClusterAccess(
        bootstrap=tuple(address for address in addresses if address is not None),
        client_id=given.text("kafka.client.id") or CLIENT_ID,
        timeout_s=_TIMEOUT_S if timeout is None else timeout / 1000,
        tls=_tls(given),
    )


def _tls(given: SourceOptions) -> ClientTls | None:
    name = "kafka.security.protocol"
    protocol = (given.text(name) or "PLAINTEXT").strip().upper()
    if protocol.startswith("SASL"):
        raise ConfigError(f"option {name} is {protocol}; SASL is not supported yet, use SSL or PLAINTEXT")
    if not parse_choice(name, protocol, {"plaintext": False, "ssl": True}):
        return None
    for store in ("keystore", "truststore"):
        _check_store_type(given, store)
    check = given.text("kafka.ssl.endpoint.identification.algorithm")
    chain = given.text("kafka.ssl.keystore.certificate.chain")
    key = given.text("kafka.ssl.keystore.key")
    return ClientTls(
        ca=given.text("kafka.ssl.truststore.location") or given.text("kafka.ssl.ca.location"),
        certificate=given.text("kafka.ssl.keystore.location") or given.text("kafka.ssl.certificate.location"),
        key=given.text("kafka.ssl.key.location"),
        key_password=given.text("kafka.ssl.key.password"),
        check_hostname=check is None or check.strip().lower() not in ("", "none"),
        ca_text=given.text("kafka.ssl.truststore.certificates"),
        identity_text=None if chain is None and key is None else f"{key or ''}\n{chain or ''}\n",
    )


def _check_store_type(given: SourceOptions, store: str) -> None:
    """Reject Java keystores: only PEM files are supported."""
    location = given.text(f"kafka.ssl.{store}.location")
    kind = (given.text(f"kafka.ssl.{store}.type") or "PEM").strip().upper()
    is_java = location is not None and location.lower().endswith((".jks", ".p12", ".pfx"))
    if kind == "PEM" and not is_java:
        return
    where = location or f"kafka.ssl.{store}.location"
    raise ConfigError(
        f"option kafka.ssl.{store}.type: only PEM is supported, and {where} is "
        f"{kind if kind != 'PEM' else 'a Java keystore'}; convert it: "
        "openssl pkcs12 -in STORE.p12 -nodes -out STORE.pem (a JKS first with keytool -importkeystore)"
    )
