"""Parses the URL of `--metadata`: etcd's members, credentials and TLS files.

    etcd://[user:password@]host:port,host:port,...[/root][?tls=true&ca=FILE&cert=FILE&key=FILE]

`root` is a prefix of every key, for an etcd that is shared with other users. `ca`, `cert` and `key` name PEM
files; naming any of them enables TLS. Characters in a user or password that are not letters or digits are
percent-encoded.

Rule: an error message names what is wrong, and never contains the password.
"""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from penstock.errors import ConfigError

SCHEME = "etcd://"
PORT_DEFAULT = 2379
_OPTIONS = ("tls", "ca", "cert", "key")


class EtcdTls(NamedTuple):
    ca_path: str | None = None
    """None: the certificate authorities that the machine trusts."""
    certificate_path: str | None = None
    key_path: str | None = None


class EtcdUrl(NamedTuple):
    endpoints: tuple[str, ...]
    """host:port of each member, each once, in the order given."""
    root: str = ""
    user: str | None = None
    password: str = ""
    tls: EtcdTls | None = None

    def __repr__(self) -> str:
        """The members and the root: a message or a log line never shows the password."""
        return f"EtcdUrl({','.join(self.endpoints)}{self.root})"

    @property
    def base_urls(self) -> tuple[str, ...]:
        scheme = "http" if self.tls is None else "https"
        return tuple(f"{scheme}://{endpoint}" for endpoint in self.endpoints)


def parse_etcd_url(text: str) -> EtcdUrl:
    """Parse the URL. ConfigError names what is wrong."""
    if not text.startswith(SCHEME):
        raise ConfigError(f"a metadata store is given as {SCHEME}host:port,...")
    rest, _, query = text.removeprefix(SCHEME).partition("?")
    authority, slash, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    if at and not credentials.partition(":")[0]:
        raise ConfigError(f"{SCHEME}user:password@...: the user is missing before the @")
    user, _, password = credentials.partition(":")
    endpoints = tuple(dict.fromkeys(map(_endpoint, hosts.split(","))))
    return EtcdUrl(
        endpoints,
        root=_root(slash + path),
        user=unquote(user) if at else None,
        password=unquote(password),
        tls=_tls(query),
    )


def _endpoint(text: str) -> str:
    text = text.strip()
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(PORT_DEFAULT)
    if not host:
        raise ConfigError(
            f"{text!r} names no host; give host:port of each member of etcd, with commas between"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f"{text!r}: an IPv6 address stands in brackets, as in [::1]:{PORT_DEFAULT}")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ConfigError(f"{text!r}: {port!r} is no port; etcd usually listens on {PORT_DEFAULT}")
    return f"{host}:{int(port)}"


def _root(path: str) -> str:
    root = path.rstrip("/")
    if root and not (root.isascii() and root.isprintable() and "//" not in root and " " not in root):
        raise ConfigError(f"{path!r}: the root of the keys is a path of printable characters, as in /staging")
    return root


def _tls(query: str) -> EtcdTls | None:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ConfigError(f"?{name}=: is not known here; there are {', '.join(_OPTIONS)}")
        if name in given:
            raise ConfigError(f"?{name}=: is given twice")
        if not value:
            raise ConfigError(f"?{name}=: has no value")
        given[name] = value
    wanted = given.get("tls", "true" if given else "false")
    if wanted not in ("true", "false"):
        raise ConfigError(f"?tls={wanted}: must be true or false")
    if wanted == "false":
        if len(given) > 1:
            raise ConfigError("?tls=false: certificates are given all the same; leave out one or the other")
        return None
    if ("cert" in given) != ("key" in given):
        raise ConfigError("?cert= and ?key= go together: a certificate and its private key")
    return EtcdTls(given.get("ca"), given.get("cert"), given.get("key"))
