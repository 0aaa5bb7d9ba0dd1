"""From options to a client of the cluster.

Python's TLS takes certificates of its own only from files. Those given as text are put into a folder
that nobody else may read, once for each process, and removed when it ends.
"""

import atexit
import os
import shutil
import tempfile
from functools import cache

from penstock.host.tls import ClientTls
from penstock.spark.options import Access, Tls
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
        ca=tls.ca if tls.ca_text is None else _file_with(tls.ca_text, os.getpid()),
        certificate=tls.certificate
        if tls.identity_text is None
        else _file_with(tls.identity_text, os.getpid()),
        key=tls.key,
        key_password=tls.key_password,
        check_hostname=tls.check_hostname,
    )


@cache
def _file_with(text: str, process: int) -> str:
    """Keyed by the process too: a child must not use what its parent removes."""
    folder = tempfile.mkdtemp(prefix="penstock-tls-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "store.pem")
    with open(path, "x", encoding="ascii") as file:
        file.write(text)
    return path
