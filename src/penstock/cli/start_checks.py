"""Whether the files and folders that a broker's settings name can be used as they are meant to be.

`serve` and `check-config` ask this before anything is made or changed, so that both say the same. What
happens to a file between this and its use is told by the broker, in its own words.

Rule: each problem names the setting, the file and what to do about it.
"""

import os
from collections.abc import Iterator

from penstock.config.broker import BrokerConfig


def file_problems(config: BrokerConfig) -> list[str]:
    return [*_data_directory_problems(config.node.data_dir), *_tls_problems(config)]


def _tls_problems(config: BrokerConfig) -> Iterator[str]:
    if not config.tls:
        return
    from penstock.host.tls import listener_problems

    for name, tls in config.tls.items():
        yield from listener_problems(name, tls)


def _data_directory_problems(path: str) -> Iterator[str]:
    existing = _nearest_existing(path)
    if not os.path.isdir(existing):
        yield (f"log.dirs = {path!r}: {existing} is not a folder; choose one for the data with --data-dir")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield (
            f"log.dirs = {path!r}: {_user()} may not write to {existing};"
            " allow it, or choose another folder with --data-dir"
        )
    elif existing == path:
        yield from _metadata_problems(path)


def _metadata_problems(path: str) -> Iterator[str]:
    from penstock.log.data_directory import METADATA_FILE

    metadata = os.path.join(path, METADATA_FILE)
    if os.path.isdir(metadata):
        yield f"log.dirs = {path!r}: {metadata} is a folder and should be a file; restore it from a backup"
    elif os.path.exists(metadata) and not os.access(metadata, os.R_OK | os.W_OK):
        yield f"log.dirs = {path!r}: {_user()} may not read and write {metadata}; allow it"


def _nearest_existing(path: str) -> str:
    """The folder itself, or that of its parents in which the broker would begin to make folders."""
    while not os.path.lexists(path):
        path = os.path.dirname(path.rstrip("/")) or "."
    return path


def _user() -> str:
    return f"the user with id {os.geteuid()}"
