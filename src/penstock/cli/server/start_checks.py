"""Checks of the files and folders that a broker's settings name.

`serve` and `check-config` run these checks before anything is created or changed, so that both report the
same problems. If a file changes between the check and its use, the broker reports that itself.

Only `serve` uses `taken_addresses`: the settings may be correct although another broker uses the address.

Rule: each problem names the setting, the file and the remedy.
"""

import os
import socket
from collections.abc import Iterator

from penstock.config.broker import BrokerConfig, NodeConfig
from penstock.config.listeners import Address
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull


def file_problems(config: BrokerConfig) -> list[str]:
    return [
        *_data_directory_problems(config.node),
        *_tls_problems(config),
        *_store_problems(config),
    ]


def _store_problems(config: BrokerConfig) -> Iterator[str]:
    if config.node.is_standalone:
        return
    from penstock.metadata.etcd.url import parse_etcd_url

    try:
        parse_etcd_url(config.node.metadata_store)
    except ConfigError as problem:
        yield f"metadata.store: {problem}"


def _tls_problems(config: BrokerConfig) -> Iterator[str]:
    if not config.tls:
        return
    from penstock.host.tls import listener_problems

    for name, tls in config.tls.items():
        yield from listener_problems(name, tls)


def _data_directory_problems(node: NodeConfig) -> Iterator[str]:
    path = node.data_dir
    existing = _nearest_existing(path)
    if not os.path.isdir(existing):
        yield (f"log.dirs = {path!r}: {existing} is not a folder; choose one for the data with --data-dir")
    elif os.statvfs(existing).f_flag & os.ST_RDONLY:
        yield (
            f"log.dirs = {path!r}: the file system of {existing} is mounted read-only;"
            " mount it for writing, or choose another folder with --data-dir"
        )
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield (
            f"log.dirs = {path!r}: {_user()} may not write to {existing};"
            " allow it, or choose another folder with --data-dir"
        )
    elif existing == path:
        yield from _metadata_problems(path)
        yield from _identity_problems(path, node)


def _metadata_problems(path: str) -> Iterator[str]:
    from penstock.log.data_directory import METADATA_FILE

    metadata = os.path.join(path, METADATA_FILE)
    if os.path.isdir(metadata):
        yield f"log.dirs = {path!r}: {metadata} is a folder and should be a file; restore it from a backup"
    elif os.path.exists(metadata) and not os.access(metadata, os.R_OK | os.W_OK):
        yield f"log.dirs = {path!r}: {_user()} may not read and write {metadata}; allow it"


def _identity_problems(path: str, node: NodeConfig) -> Iterator[str]:
    """Check that the data directory belongs to this broker, with the broker's messages, but read-only."""
    import msgspec

    from penstock.host.os_disk import OsDisk
    from penstock.log.data_directory import (
        IDENTITY_FILE,
        DirectoryIdentity,
        reject_foreign_folder,
        reject_other_store_kind,
    )

    disk, file = OsDisk(), f"{path}/{IDENTITY_FILE}"
    try:
        reject_foreign_folder(disk, path)
        if not disk.exists(file):
            return
        identity = msgspec.json.decode(disk.read_file(file), type=DirectoryIdentity)
        reject_other_store_kind(disk, path, is_standalone=node.is_standalone)
    except msgspec.DecodeError:
        yield f"log.dirs = {path!r}: {file} is damaged; restore it from a backup of the data directory"
    except (CorruptData, StorageFailed, StorageFull) as problem:
        yield f"log.dirs = {path!r}: {problem}"
    else:
        if identity.node_id != node.node_id:
            yield (
                f"log.dirs = {path!r}: belongs to node {identity.node_id}, not to node {node.node_id};"
                f" start with --node-id {identity.node_id}, or choose another folder with --data-dir"
            )


def _nearest_existing(path: str) -> str:
    """Return the path, or the nearest parent that exists, below which the broker would create folders."""
    while not os.path.lexists(path):
        path = os.path.dirname(path.rstrip("/")) or "."
    return path


# Only for `serve`


def taken_addresses(config: BrokerConfig) -> Iterator[str]:
    """Yield addresses that the broker cannot bind, before it creates its data directory."""
    for listener in config.listeners:
        where = f"listener {listener.name}", "--kafka or `listeners`"
        yield from _taken(Address(listener.host, listener.port), *where)
    yield from _taken(config.http, "HTTP", "--http")


def _taken(address: Address, purpose: str, option: str) -> Iterator[str]:
    try:
        places = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in places:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # asyncio sets this for the broker's socket, too: an IPv4 socket on the same port is no
                    # conflict.
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
    except socket.gaierror:
        yield f"cannot listen on {address} for {purpose}: no such host. Choose another address with {option}"
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        yield f"cannot listen on {address} for {purpose}: {reason}. Choose another address with {option}"


def _user() -> str:
    return f"the user with id {os.geteuid()}"
