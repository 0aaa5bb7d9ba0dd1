"""From options to a client of the cluster."""

from penstock.host.tls import ClientTls
from penstock.spark.option_access import Access, Tls
from penstock.spark.pool import ClientSettings


def client_settings(access: Access, *, timeout_s: float | None = None) -> ClientSettings:
    return ClientSettings(
        bootstrap=access.bootstrap,
        client_id=access.client_id,
        tls=None if access.tls is None else _client_tls(access.tls),
        timeout_s=access.timeout_s if timeout_s is None else timeout_s,
    )


def _client_tls(tls: Tls) -> ClientTls:
    return ClientTls(
        ca=tls.ca,
        certificate=tls.certificate,
        key=tls.key,
        key_password=tls.key_password,
        check_hostname=tls.check_hostname,
        ca_text=tls.ca_text,
        identity_text=tls.identity_text,
    )
