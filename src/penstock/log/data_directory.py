"""What a data directory is, and whether this broker may use one.

    penstock.json     format version, cluster id, node id, directory id
    clean-shutdown    there while nothing is left to recover
    metadata.sqlite   the cluster's facts, when they are kept here
    logs/             a folder for each partition
    reserve           space set aside, so that a full disk can still be freed through the broker
    strays/           folders that were found there and belong to no partition, kept for people

A directory of another format, or of somebody else, is refused with a sentence; nothing is guessed.
"""

import re
from base64 import urlsafe_b64encode
from itertools import count
from typing import Final

import msgspec

from penstock.errors import CorruptData
from penstock.host.disk import Disk, Stored
from penstock.host.randomness import Randomness
from penstock.limits import DISK_RESERVE_BYTES
from penstock.types import NodeId, TopicPartition

FORMAT_VERSION: Final = 1
IDENTITY_FILE: Final = "penstock.json"
CLEAN_FILE: Final = "clean-shutdown"
METADATA_FILE: Final = "metadata.sqlite"
LOGS_FOLDER: Final = "logs"
STRAYS_FOLDER: Final = "strays"
RESERVE_FILE: Final = "reserve"
# Left by us before the identity is written, or by the system.
IGNORED_WHEN_EMPTY: Final = frozenset({".lock", "lost+found", LOGS_FOLDER, IDENTITY_FILE + ".tmp"})

_PARTITION_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
DOOMED_SUFFIX: Final = ".deleted"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    cluster_id: str
    node_id: int
    directory_id: str


class DataDirectory:
    def __init__(self, disk: Disk, path: str, identity: Identity) -> None:
        self.disk = disk
        self.path = path
        self.identity = identity

    @property
    def logs_path(self) -> str:
        return f"{self.path}/{LOGS_FOLDER}"

    @property
    def metadata_path(self) -> str:
        return f"{self.path}/{METADATA_FILE}"

    def folder_of(self, partition: TopicPartition) -> str:
        name = str(partition)
        assert _PARTITION_FOLDER.fullmatch(name), f"{name!r} was not checked before it became a path"
        return f"{self.logs_path}/{name}"

    def partitions_on_disk(self) -> list[TopicPartition]:
        matches = map(_PARTITION_FOLDER.fullmatch, self.disk.list_folder(self.logs_path))
        return [TopicPartition(match["topic"], int(match["partition"])) for match in matches if match]

    def release_reserve(self) -> bool:
        """Give back the space that is set aside for freeing space. False if it was used already."""
        path = f"{self.path}/{RESERVE_FILE}"
        if not self.disk.exists(path):
            return False
        self.disk.remove(path)
        return True

    def keep_reserve(self) -> None:
        """Set space aside again, when there is plenty. Blocks."""
        path = f"{self.path}/{RESERVE_FILE}"
        if not self.disk.exists(path) and self.disk.space(self.path).usable_bytes > 4 * DISK_RESERVE_BYTES:
            self.disk.store([Stored(path, bytes(DISK_RESERVE_BYTES))])

    def doom(self, partition: TopicPartition, mark: str) -> str | None:
        """Give a folder a name under which it is no partition's any more; None if there is none."""
        folder = self.folder_of(partition)
        if not self.disk.exists(folder):
            return None
        doomed = f"{self.logs_path}/{partition.partition}.{mark}{DOOMED_SUFFIX}"
        self.disk.remove_folder(doomed)
        self.disk.rename(folder, doomed)
        return doomed

    def set_aside(self, partition: TopicPartition) -> str:
        """Move a folder that belongs to no known partition to where nothing looks but people."""
        base = f"{self.path}/{STRAYS_FOLDER}/{partition}"
        self.disk.make_folder(f"{self.path}/{STRAYS_FOLDER}")
        taken = set(self.disk.list_folder(f"{self.path}/{STRAYS_FOLDER}"))
        number = next(number for number in count(1) if f"{partition}.{number}" not in taken)
        self.disk.rename(self.folder_of(partition), f"{base}.{number}")
        return f"{base}.{number}"

    def doomed_folders(self) -> list[str]:
        """Partitions that were being removed when the last process ended."""
        names = self.disk.list_folder(self.logs_path)
        return [f"{self.logs_path}/{name}" for name in names if name.endswith(DOOMED_SUFFIX)]

    def take_clean_mark(self) -> bool:
        """Whether the last process stopped cleanly. From now on this one has not, until it says so."""
        path = f"{self.path}/{CLEAN_FILE}"
        was_clean = self.disk.exists(path)
        if was_clean:
            self.disk.remove(path)
            self.disk.sync((), [self.path])
        return was_clean

    def leave_clean_mark(self) -> None:
        """Call when every log is closed and synced."""
        self.disk.store([Stored(f"{self.path}/{CLEAN_FILE}", b"")])


def refuse_strangers(disk: Disk, path: str) -> None:
    """CorruptData if the folder holds something else than ours. Changes nothing."""
    if not disk.exists(path) or disk.exists(f"{path}/{IDENTITY_FILE}"):
        return
    strangers = [name for name in disk.list_folder(path) if name not in IGNORED_WHEN_EMPTY]
    if strangers:
        raise CorruptData(
            f"{path} is not empty and has no {IDENTITY_FILE}: it is not a Penstock data directory. "
            f"Choose an empty folder with --data-dir (found {strangers[0]!r})"
        )


def open_directory(disk: Disk, path: str, node_id: NodeId, randomness: Randomness) -> DataDirectory:
    """Make a new data directory, or check an existing one. Blocks."""
    refuse_strangers(disk, path)
    disk.make_folder(f"{path}/{LOGS_FOLDER}")
    if not disk.exists(f"{path}/{IDENTITY_FILE}"):
        identity = Identity(
            format=FORMAT_VERSION,
            cluster_id=_new_id(randomness),
            node_id=node_id,
            directory_id=_new_id(randomness),
        )
        disk.store([Stored(f"{path}/{IDENTITY_FILE}", msgspec.json.encode(identity))])
        disk.sync((), [path.rpartition("/")[0] or "."])
        return DataDirectory(disk, path, identity)
    return DataDirectory(disk, path, _read_identity(disk, path, node_id))


def _read_identity(disk: Disk, path: str, node_id: NodeId) -> Identity:
    try:
        identity = msgspec.json.decode(disk.read_file(f"{path}/{IDENTITY_FILE}"), type=Identity)
    except msgspec.DecodeError as error:
        raise CorruptData(f"{path}/{IDENTITY_FILE} cannot be read: {error}") from error
    if identity.format != FORMAT_VERSION:
        raise CorruptData(
            f"{path} has data format {identity.format}; this Penstock reads format {FORMAT_VERSION}. "
            "Use the version of Penstock that wrote it"
        )
    if identity.node_id != node_id:
        raise CorruptData(
            f"{path} belongs to node {identity.node_id}, not to node {node_id}: "
            f"start with --node-id {identity.node_id} or choose another --data-dir"
        )
    return identity


def _new_id(randomness: Randomness) -> str:
    """Sixteen random bytes in the form Kafka gives ids: 22 characters, never beginning with a dash."""
    while True:
        text = urlsafe_b64encode(randomness.bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
