"""The settings of a cluster client, made from options."""

from penstock.spark.options.cluster_access import ClusterAccess
from penstock.spark.pool import ClientSettings


def client_settings(access: ClusterAccess, *, timeout_s: float | None = None) -> ClientSettings:
    return ClientSettings(
        bootstrap=access.bootstrap,
        client_id=access.client_id,
        tls=access.tls,
        timeout_s=access.timeout_s if timeout_s is None else timeout_s,
    )
