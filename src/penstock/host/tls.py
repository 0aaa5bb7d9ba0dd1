"""TLS for listeners, from PEM files, with certificates that can be replaced while serving.

A context that listeners share is reloaded in place: connections that exist keep what they agreed
on, the next handshake uses the new certificate. A file that cannot be loaded changes nothing.
"""

import os
import ssl

from penstock.config.broker import ClientAuth, TlsConfig
from penstock.errors import ConfigError

MINIMUM_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsListener:
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
        """True if new files were loaded. ConfigError if there are new ones and they are no good."""
        if self._stamps() == self._loaded:
            return False
        self.reload()
        return True

    def reload(self) -> None:
        stamps = self._stamps()
        config = self._config
        try:
            # Tried on a context of its own first: a bad file must not spoil the one in use.
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            for context in (trial, self.context):
                context.load_cert_chain(config.keystore_path, password=config.key_password or _no_password)
                if config.truststore_path is not None:
                    context.load_verify_locations(config.truststore_path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"listener {self._name}: {config.keystore_path} or its trust store cannot be loaded "
                f"({error}); a PEM file with the private key and the certificate chain is expected"
            ) from error
        self._loaded = stamps

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        paths = [self._config.keystore_path, self._config.truststore_path]
        return tuple(_stamp(path) for path in paths if path is not None)


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _no_password() -> str:
    """OpenSSL would ask on the terminal otherwise."""
    raise ValueError("the key is encrypted and ssl.key.password is not set")
