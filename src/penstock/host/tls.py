"""TLS from PEM files: for listeners, whose certificates can be replaced while serving, and for clients.

The context of a listener is reloaded in place: existing connections keep their session, and the next
handshake uses the new certificate. A file that cannot be loaded changes nothing.

OpenSSL reports little more about a bad file than that it is bad. This module finds the cause, for broker and
clients alike.

Rule: a problem names the file and its remedy.
"""

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.config.broker import ClientAuth, TlsConfig
from penstock.errors import ConfigError

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_CERTIFICATES: Final = (b"CERTIFICATE", b"TRUSTED CERTIFICATE", b"X509 CERTIFICATE")
_KEY: Final = b"PRIVATE KEY"
_COMBINE_REMEDY: Final = "put the private key and the certificate chain into one file: cat key.pem chain.pem"

MINIMUM_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsListener:
    """TLS context of one listener, with its files."""

    def __init__(self, name: str, config: TlsConfig) -> None:
        self._name = name
        self._config = config
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        versions = sorted(MINIMUM_VERSIONS[version] for version in config.versions)
        self.context.minimum_version, self.context.maximum_version = versions[0], versions[-1]
        self.context.verify_mode = {
            ClientAuth.NONE: ssl.CERT_NONE,
            ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
            ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
        }[config.client_auth]
        self._loaded: tuple[tuple[int, int, int], ...] = ()
        self.reload()

    def reload_if_changed(self) -> bool:
        """Reload changed files. True if new files were loaded. ConfigError: the new files are invalid."""
        if self._stamps() == self._loaded:
            return False
        self.reload()
        return True

    def reload(self) -> None:
        stamps = self._stamps()
        config = self._config
        try:
            # Loaded into a trial context first: a bad file must not affect the one in use.
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            for context in (trial, self.context):
                context.load_cert_chain(config.keystore_path, password=config.key_password or _no_password)
                if config.truststore_path is not None:
                    context.load_verify_locations(config.truststore_path)
        except (OSError, ValueError) as error:
            problems = list(listener_problems(self._name, config))
            # No problem found: the files have changed since they were loaded, and the next check is soon.
            raise ConfigError("\n".join(problems) or f"listener {self._name}: {error}") from error
        self._loaded = stamps

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        paths = [self._config.keystore_path, self._config.truststore_path]
        return tuple(_stamp(path) for path in paths if path is not None)


class ClientTls(NamedTuple):
    """TLS settings of a client. With neither `ca` nor `ca_text` the system's authorities are trusted."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    """Set if the private key is not in the file of the certificate."""
    key_password: str | None = None
    check_hostname: bool = True
    """Whether the broker's certificate must match the host name of the connection."""
    ca_text: str | None = None
    """Content, instead of the file `ca`."""
    identity_text: str | None = None
    """Content, instead of the file `certificate`, with the private key."""

    def context(self) -> ssl.SSLContext:
        """Make the context. ConfigError if one of the files is invalid."""
        if self.key is not None and self.certificate is None:
            raise ConfigError(
                f"the private key in {self.key} has no certificate; give its certificate as well"
            )
        context = self._context_with_authorities()
        context.check_hostname = self.check_hostname
        if self.identity_text is not None:
            self._load_identity_text(context, self.identity_text)
        elif self.certificate is not None:
            self._load_identity(context, self.certificate, self.key)
        return context

    def _context_with_authorities(self) -> ssl.SSLContext:
        if self.ca is not None and (problem := authorities_problem(self.ca)):
            raise ConfigError(problem)
        try:
            return ssl.create_default_context(cafile=self.ca, cadata=self.ca_text)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                "the text of the certificates to trust is not PEM; give whole blocks"
            ) from error

    def _load_identity(self, context: ssl.SSLContext, path: str, key_path: str | None) -> None:
        if problem := identity_problem(path, key_path, self.key_password):
            raise ConfigError(problem)
        context.load_cert_chain(path, key_path, self.key_password or _no_password)

    def _load_identity_text(self, context: ssl.SSLContext, text: str) -> None:
        """Load the identity through a temporary file, because OpenSSL reads identities from files only. Only
        the user can read it, and it is removed at once.
        """
        with tempfile.NamedTemporaryFile("w", prefix="penstock-", suffix=".pem") as file:
            file.write(text)
            file.flush()
            try:
                self._load_identity(context, file.name, None)
            except ConfigError as error:
                raise ConfigError(str(error).replace(file.name, "the text of the certificate")) from None

    def __repr__(self) -> str:
        shown = self._replace(
            key_password=None if self.key_password is None else "[hidden]",
            identity_text=None if self.identity_text is None else "[hidden]",
        )
        return f"ClientTls{tuple(shown)!r}"


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def listener_problems(name: str, config: TlsConfig) -> Iterator[str]:
    """Describe the problems of a listener's files."""
    if problem := identity_problem(config.keystore_path, password=config.key_password):
        yield f"ssl.keystore.location of listener {name}: {problem}"
    if config.truststore_path is not None and (problem := authorities_problem(config.truststore_path)):
        yield f"ssl.truststore.location of listener {name}: {problem}"


def authorities_problem(path: str) -> str | None:
    """Describe the problem of a file of trusted certificates; None if it is valid."""
    try:
        blocks = _blocks(path)
    except ConfigError as problem:
        return str(problem)
    return _certificates_problem(path, blocks, "give the certificate of the authority that signs the others")


def identity_problem(path: str, key_path: str | None = None, password: str | None = None) -> str | None:
    """Describe the problem of a certificate chain and its private key, in one or two files; None: valid."""
    holder = key_path or path
    try:
        blocks, keys = _blocks(path), _blocks(holder)
    except ConfigError as problem:
        return str(problem)
    remedy = (
        _COMBINE_REMEDY if key_path is None else "give the certificate in one file and its key in the other"
    )
    if found := _certificates_problem(path, blocks, remedy):
        return found
    if not any(label.endswith(_KEY) for label, _ in keys):
        return f"{holder} holds no private key; {remedy}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, key_path, password or _no_password)
    except ssl.SSLError as error:
        return _identity_refusal(path, holder, error, has_password=password is not None)
    except (OSError, ValueError) as error:
        return f"{holder} cannot be used: {error}"
    return None


def _identity_refusal(path: str, holder: str, error: ssl.SSLError, *, has_password: bool) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"the private key in {holder} does not belong to the first certificate in {path}; give the key "
            "it was issued for, and put the certificate before those of its chain"
        )
    if has_password:
        return f"the private key in {holder} is malformed or its password is another; check ssl.key.password"
    return f"the private key in {holder} is malformed ({error.reason or 'not PEM'}); copy the file again"


def _certificates_problem(path: str, blocks: list[tuple[bytes, bytes]], remedy: str) -> str | None:
    certificates = [block for label, block in blocks if label in _CERTIFICATES]
    if not certificates:
        return f"{path} holds no certificate; {remedy}"
    for number, certificate in enumerate(certificates, 1):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate.decode("ascii"))
        except (ssl.SSLError, ValueError):
            return f"certificate {number} of {len(certificates)} in {path} is malformed; copy the file again"
    return None


def _blocks(path: str) -> list[tuple[bytes, bytes]]:
    """Label and text of each block of a PEM file. ConfigError if there is none, with the reason."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; give the path of a PEM file") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); give a PEM file that the user with id "
            f"{os.geteuid()} may read"
        ) from None
    blocks = [(found[1], found[0]) for found in _BLOCK.finditer(content)]
    if blocks:
        return blocks
    if b"-----BEGIN " in content:
        raise ConfigError(f"{path} is malformed: a part of it begins and does not end; copy the file again")
    raise ConfigError(
        f"{path} is not a PEM file; convert other keystores, as with openssl pkcs12 -in FILE -nodes -out PEM"
    )


def _no_password() -> str:
    """Reject an encrypted key without a password: OpenSSL would prompt on the terminal otherwise."""
    raise ValueError("the key is encrypted and ssl.key.password is not set")
