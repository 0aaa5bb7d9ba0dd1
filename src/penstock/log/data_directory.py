"""The data directory: its files, and the check whether this broker may use it.

    penstock.json     format version, cluster id, node id, directory id, membership in a cluster
    clean-shutdown    present after a clean stop; in a cluster it holds the broker epoch that stopped
    metadata.sqlite   the cluster metadata, when it is kept here
    logs/             a folder for each partition
    logs/directory-id id of the data directory that owns the logs: without it the wrong folder is mounted
    logs/*/damaged    marks this replica of a partition as damaged, with the reason
    partitions.json   in a cluster: partitions with a folder here, to detect folders that disappear
    store-revision    in a cluster: how far this broker has followed the metadata store
    start-ids.json    in a cluster: its processes since the last one that is known to be admitted
    reserve           space set aside, so that a full disk can still be freed through the broker
    strays/           folders that belong to no partition, or are damaged: for an operator

A directory of another format, or of another owner, is rejected with an explanation; nothing is guessed.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import count
from typing import Final, TypeVar

import msgspec

from penstock.errors import CorruptData, StorageFull
from penstock.host.disk import Disk, SmallFile
from penstock.host.randomness import Randomness
from penstock.limits import DISK_RESERVE_BYTES, DISK_RESERVE_FREE_BYTES, FILE_NAME_BYTES_MAX
from penstock.log.damaged_copies import (
    OTHERS_IN_SYNC_MIN,
    CopySpaceNeeds,
    DiscardedCopy,
    NoRoomForCopy,
    lacking_bytes,
)
from penstock.types import NodeId, TopicPartition

FORMAT_VERSION: Final = 1
IDENTITY_FILE: Final = "penstock.json"
CLEAN_FILE: Final = "clean-shutdown"
METADATA_FILE: Final = "metadata.sqlite"
LOGS_FOLDER: Final = "logs"
STRAYS_FOLDER: Final = "strays"
RESERVE_FILE: Final = "reserve"
MOUNT_FILE: Final = "directory-id"
INVENTORY_FILE: Final = "partitions.json"
STARTS_FILE: Final = "start-ids.json"
REVISION_FILE: Final = "store-revision"
DAMAGE_FILE: Final = "damaged"
START_IDS_MAX: Final = 100
# Left by this program before the identity is written, by whatever started it, or by the system.
IGNORED_WHEN_EMPTY: Final = frozenset(
    {
        ".lock",
        "lost+found",
        LOGS_FOLDER,
        IDENTITY_FILE + ".tmp",
        "penstock.log",
        "penstock.pid",
        "penstock.pid.tmp",
    }
)

_PARTITION_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
DELETED_SUFFIX: Final = ".deleted"
DAMAGED_SUFFIX: Final = ".damaged"
STRAY_NAME_BYTES_MAX: Final = FILE_NAME_BYTES_MAX - 12
"""Without a suffix: `.damaged`, or a number of up to eleven digits."""
NOT_ADMITTED: Final = 0
"""Broker epoch of a process that its cluster has not admitted yet, and of a broker without a cluster."""
Inventory = dict[str, list[int]]
"""Partition numbers, by topic id as text."""
Content = TypeVar("Content")


class DirectoryIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of penstock.json."""

    format: int
    cluster_id: str
    node_id: int
    directory_id: str
    is_member: bool = False
    """The cluster metadata is in a store that brokers share, no longer in a file of this directory."""


class StoreProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a broker has followed the metadata store of its cluster."""

    revision: int
    digest: str = ""
    """Digest of the keys that changed at that revision; empty: not known."""


class DataDirectory:
    """An open data directory."""

    def __init__(self, disk: Disk, path: str, identity: DirectoryIdentity) -> None:
        self.disk = disk
        self.path = path
        self.identity = identity
        self.broker_epoch = NOT_ADMITTED
        """Epoch with which this broker was last admitted to its cluster, for the clean shutdown mark."""
        self.store_progress = StoreProgress(0)
        self.lock_mark = ""
        """Name of the lock that this process holds on the directory. Empty: the lock has no name here."""

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
        """Remove the space that is set aside for a full disk. False if it was used already."""
        path = f"{self.path}/{RESERVE_FILE}"
        was_there = self.disk.exists(path)
        if was_there:
            self.disk.remove(path)
        return was_there

    def refill_reserve(self) -> None:
        """Set space aside again, when enough is free. Blocks."""
        path = f"{self.path}/{RESERVE_FILE}"
        if not self.disk.exists(path) and self.disk.space(self.path).usable_bytes > DISK_RESERVE_FREE_BYTES:
            self.disk.store([SmallFile(path, bytes(DISK_RESERVE_BYTES))])

    def mark_deleted(self, gone: Iterable[tuple[TopicPartition, str]]) -> list[str]:
        """Rename folders durably to names under which they belong to no partition. Blocks.

        Returns the new paths. Each partition comes with a mark that distinguishes it from others of its name.
        """
        pending_deletion: list[str] = []
        for partition, mark in gone:
            folder, path = self.folder_of(partition), self._deleted_path(partition, mark)
            if self.disk.exists(folder):
                self.disk.remove_folder(path)
                self.disk.rename(folder, path)
                pending_deletion.append(path)
        self._sync_deleted_names(pending_deletion)
        return pending_deletion

    def _deleted_path(self, partition: TopicPartition, mark: str) -> str:
        return f"{self.logs_path}/{partition.partition}.{mark}{DELETED_SUFFIX}"

    def _sync_deleted_names(self, pending_deletion: Sequence[str]) -> None:
        """Make the renames durable before any file is removed: a power loss could otherwise restore the old
        names with some files gone.

        Without its first segment the rest of a partition looks like a log that starts later.
        """
        if pending_deletion:
            self.disk.sync((), [self.logs_path])

    def remove_deleted(self, folders: Iterable[str]) -> None:
        """Remove folders. Blocks."""
        for folder in folders:
            self.disk.remove_folder(folder)

    def move_to_strays(self, partition: TopicPartition) -> str:
        """Move a folder that belongs to no existing partition to `strays`, which only operators use."""
        strays, base = f"{self.path}/{STRAYS_FOLDER}", _stray_name(partition)
        self.disk.make_folder(strays)
        taken = set(self.disk.list_folder(strays))
        number = next(number for number in count(1) if f"{base}.{number}" not in taken)
        self.disk.rename(self.folder_of(partition), f"{strays}/{base}.{number}")
        return f"{strays}/{base}.{number}"

    def move_damaged_to_strays(self, partition: TopicPartition) -> str:
        """Move the folder of a damaged replica to `strays`, replacing an earlier one there. Blocks.

        Repeatable: a failed attempt may have moved the folder already.
        """
        target = self._damaged_stray(partition)
        self.disk.make_folder(f"{self.path}/{STRAYS_FOLDER}")
        if self.disk.exists(self.folder_of(partition)):
            self.disk.remove_folder(target)
            self.disk.rename(self.folder_of(partition), target)
        self.disk.sync((), [self.path, self.logs_path, f"{self.path}/{STRAYS_FOLDER}"])
        return target

    def discard_damaged(self, partition: TopicPartition, mark: str, room: CopySpaceNeeds) -> DiscardedCopy:
        """Free the folder of a damaged replica that is no longer needed. Blocks.

        Its files are moved to `strays` if a new copy fits beside them. Otherwise they are removed; or kept,
        for one of the reasons in `log/damaged_copies.py`, with NoRoomForCopy. Repeatable, as
        `move_damaged_to_strays`. `mark`: as for `mark_deleted`.
        """
        folder, stray = self.folder_of(partition), self._damaged_stray(partition)
        if not self.disk.exists(folder):
            pending_deletion = self._deleted_path(partition, mark)
            if self.disk.exists(pending_deletion):
                size_bytes = self._folder_bytes(pending_deletion)
                self.remove_deleted([pending_deletion])
                return DiscardedCopy(size_bytes, None)
            return DiscardedCopy(self._folder_bytes(stray), self.move_damaged_to_strays(partition))
        size_bytes = self._folder_bytes(folder)
        # An earlier stray of the same name is replaced, so its space counts as free.
        usable_bytes = self.disk.space(self.logs_path).usable_bytes + self._folder_bytes(stray)
        lacking = lacking_bytes(room, size_bytes=size_bytes, usable_bytes=usable_bytes)
        if lacking <= 0:
            return DiscardedCopy(size_bytes, self.move_damaged_to_strays(partition))
        # Without a recorded damage an operation failed, or there was no space for the record: the bytes may
        # be valid.
        if room.others_in_sync < OTHERS_IN_SYNC_MIN or self.recorded_damage(partition) is None:
            raise NoRoomForCopy(folder, lacking)
        self.remove_deleted(self.mark_deleted([(partition, mark)]))
        return DiscardedCopy(size_bytes, None)

    def _damaged_stray(self, partition: TopicPartition) -> str:
        return f"{self.path}/{STRAYS_FOLDER}/{_stray_name(partition)}{DAMAGED_SUFFIX}"

    def _folder_bytes(self, folder: str) -> int:
        """Size of the files in a folder; 0 if the folder does not exist."""
        if not self.disk.exists(folder):
            return 0
        return sum(self.disk.size_of(f"{folder}/{name}") for name in self.disk.list_folder(folder))

    def record_damage(self, partition: TopicPartition, reason: str) -> None:
        """Record, for the next start, that a replica is damaged where recovery does not read. Blocks.

        The record is in the folder of the partition, so that it is moved and removed with it.
        """
        if not self.disk.exists(self.folder_of(partition)):
            return
        note = SmallFile(self.damage_file(partition), reason.encode())
        try:
            self.disk.store([note])
        except StorageFull:
            if not self.release_reserve():
                raise
            self.disk.store([note])

    def recorded_damage(self, partition: TopicPartition) -> str | None:
        """Reason why an earlier process recorded the replica as damaged; None if it did not. Blocks."""
        path = self.damage_file(partition)
        return self.disk.read_file(path).decode(errors="replace") if self.disk.exists(path) else None

    def damage_file(self, partition: TopicPartition) -> str:
        return f"{self.folder_of(partition)}/{DAMAGE_FILE}"

    def deleted_folders(self) -> list[str]:
        """Folders whose removal was under way when the last process ended, with durable names. Blocks."""
        names = self.disk.list_folder(self.logs_path)
        pending_deletion = [f"{self.logs_path}/{name}" for name in names if name.endswith(DELETED_SUFFIX)]
        self._sync_deleted_names(pending_deletion)
        return pending_deletion

    def inventory(self) -> Inventory:
        """Partitions that had a folder here when the broker last was a member of its cluster."""
        return _small_file(self.disk, f"{self.path}/{INVENTORY_FILE}", Inventory) or {}

    def inventory_file(self, inventory: Inventory) -> SmallFile:
        return SmallFile(f"{self.path}/{INVENTORY_FILE}", msgspec.json.encode(inventory))

    def load_store_progress(self) -> StoreProgress:
        """How far an earlier process has followed the metadata store."""
        return _small_file(self.disk, f"{self.path}/{REVISION_FILE}", StoreProgress) or StoreProgress(0)

    def store_progress_file(self) -> SmallFile:
        return SmallFile(f"{self.path}/{REVISION_FILE}", msgspec.json.encode(self.store_progress))

    def record_start(self, start_id: str, admitted: str) -> tuple[str, ...]:
        """Record that a process starts, before it registers with the cluster. Blocks.

        Returns the recorded starts, this one last. `admitted`: the last start that the cluster admitted;
        earlier ones are no longer needed. If it is not among them, this directory is an older copy.
        """
        path = f"{self.path}/{STARTS_FILE}"
        known = _small_file(self.disk, path, list[str]) or []
        if admitted in known:
            at = known.index(admitted)
            known = [admitted, *known[at + 1 :][-START_IDS_MAX:]]
        else:
            known = known[-START_IDS_MAX:]
        known.append(start_id)
        self.disk.store([SmallFile(path, msgspec.json.encode(known))])
        return tuple(known)

    def consume_clean_shutdown_mark(self) -> bool:
        """Whether the last process stopped cleanly. Removes the mark."""
        path = f"{self.path}/{CLEAN_FILE}"
        was_clean = self.disk.exists(path)
        # Removed durably: a mark that outlives a crash would report this process as cleanly stopped.
        if was_clean:
            self.disk.remove(path)
            self.disk.sync((), [self.path])
        return was_clean

    def clean_epoch(self) -> int:
        """Broker epoch with which a broker of a cluster stopped cleanly; NOT_ADMITTED if it did not."""
        path = f"{self.path}/{CLEAN_FILE}"
        text = self.disk.read_file(path) if self.disk.exists(path) else b""
        return int(text) if text.isdigit() else NOT_ADMITTED

    def write_clean_shutdown_mark(self) -> None:
        """Write the mark. Call it after every log is closed and synced."""
        text = b"%d" % self.broker_epoch if self.broker_epoch != NOT_ADMITTED else b""
        self.disk.store([SmallFile(f"{self.path}/{CLEAN_FILE}", text)])


def _stray_name(partition: TopicPartition) -> str:
    """Name of a partition's folder in `strays`, without a suffix.

    A topic name of up to 249 characters leaves no space for a suffix. A long name is shortened, and a digest
    of it distinguishes topics with the same beginning.
    """
    name = str(partition)
    if len(name) <= STRAY_NAME_BYTES_MAX:
        return name
    end = f"~{sha256(partition.topic.encode()).hexdigest()[:16]}-{partition.partition}"
    return partition.topic[: STRAY_NAME_BYTES_MAX - len(end)] + end


def reject_foreign_folder(disk: Disk, path: str) -> None:
    """Raise CorruptData if the folder holds anything but a data directory. Changes nothing."""
    if not disk.exists(path) or disk.exists(f"{path}/{IDENTITY_FILE}"):
        return
    strangers = [name for name in disk.list_folder(path) if name not in IGNORED_WHEN_EMPTY]
    if strangers:
        raise CorruptData(
            f"{path} is not empty and has no {IDENTITY_FILE}: it is not a Penstock data directory. "
            f"Choose an empty folder with --data-dir (found {strangers[0]!r})"
        )


def cluster_of(disk: Disk, path: str, node_id: NodeId) -> str | None:
    """Id of the cluster that a data directory belongs to; None if the directory is new. Blocks."""
    reject_foreign_folder(disk, path)
    return _read_identity(disk, path, node_id).cluster_id if disk.exists(f"{path}/{IDENTITY_FILE}") else None


def reject_other_store_kind(disk: Disk, path: str, *, is_standalone: bool) -> None:
    """Raise CorruptData if the metadata is in another kind of store than the one configured.

    The kinds are a file in the data directory (standalone), and a store that the brokers of a cluster share.
    """
    if not disk.exists(f"{path}/{IDENTITY_FILE}"):
        return
    is_member = identity_in(disk, path).is_member
    if is_standalone and is_member:
        raise CorruptData(
            f"{path} belongs to a broker of a cluster: start it with --metadata and the address of that "
            "cluster's store, or choose another folder with --data-dir"
        )
    if not is_standalone and not is_member and disk.exists(f"{path}/{METADATA_FILE}"):
        raise CorruptData(
            f"{path} belongs to a broker that is alone: make it the first of a cluster with "
            "`penstock cluster adopt`, start it without --metadata, or choose another folder with --data-dir"
        )


def set_membership(disk: Disk, path: str, *, is_member: bool) -> None:
    """Record where the cluster metadata is kept from now on. Blocks; atomic."""
    if is_member and disk.exists(f"{path}/{REVISION_FILE}"):
        disk.remove(f"{path}/{REVISION_FILE}")  # it belongs to an earlier store; a single broker uses none
    identity = msgspec.structs.replace(identity_in(disk, path), is_member=is_member)
    disk.store([SmallFile(f"{path}/{IDENTITY_FILE}", msgspec.json.encode(identity))])


def open_directory(
    disk: Disk, path: str, node_id: NodeId, randomness: Randomness, cluster_id: str | None = None
) -> DataDirectory:
    """Create a new data directory, or check an existing one. Blocks.

    `cluster_id`: of an existing cluster; None for a single broker.
    """
    reject_foreign_folder(disk, path)
    if disk.exists(f"{path}/{IDENTITY_FILE}"):
        identity = _read_identity(disk, path, node_id)
        _require_logs(disk, path, identity)
        return DataDirectory(disk, path, identity)
    identity = DirectoryIdentity(
        format=FORMAT_VERSION,
        cluster_id=cluster_id or new_id(randomness),
        node_id=node_id,
        directory_id=new_id(randomness),
        is_member=cluster_id is not None,
    )
    logs = f"{path}/{LOGS_FOLDER}"
    disk.make_folder(logs)
    # The mark in the logs folder first: a directory with an identity must have it.
    disk.store([SmallFile(f"{logs}/{MOUNT_FILE}", identity.directory_id.encode())])
    disk.store([SmallFile(f"{path}/{IDENTITY_FILE}", msgspec.json.encode(identity))])
    disk.sync((), [path.rpartition("/")[0] or "."])
    return DataDirectory(disk, path, identity)


def _require_logs(disk: Disk, path: str, identity: DirectoryIdentity) -> None:
    mark = f"{path}/{LOGS_FOLDER}/{MOUNT_FILE}"
    if not disk.exists(mark):
        raise CorruptData(
            f"{mark} is missing: {path}/{LOGS_FOLDER} is not the folder that the records were written to. "
            "Mount or restore it; if they are lost, begin with an empty --data-dir"
        )
    if disk.read_file(mark) != identity.directory_id.encode():
        raise CorruptData(
            f"{path}/{LOGS_FOLDER} holds the records of another data directory ({mark} and "
            f"{path}/{IDENTITY_FILE} differ): mount or restore its own"
        )


def _small_file(disk: Disk, path: str, kind: type[Content]) -> Content | None:
    """Decode a small JSON file; None if there is none."""
    if not disk.exists(path):
        return None
    try:
        return msgspec.json.decode(disk.read_file(path), type=kind)
    except msgspec.DecodeError as error:
        raise CorruptData(
            f"{path} cannot be read: {error}. Restore it, or begin with an empty --data-dir"
        ) from error


def identity_in(disk: Disk, path: str) -> DirectoryIdentity:
    """Read the identity of an existing data directory. CorruptData: unreadable, or of a later format."""
    try:
        identity = msgspec.json.decode(disk.read_file(f"{path}/{IDENTITY_FILE}"), type=DirectoryIdentity)
    except msgspec.DecodeError as error:
        raise CorruptData(f"{path}/{IDENTITY_FILE} cannot be read: {error}") from error
    if identity.format != FORMAT_VERSION:
        raise CorruptData(
            f"{path} has data format {identity.format}; this Penstock reads format {FORMAT_VERSION}. "
            "Use the version of Penstock that wrote it"
        )
    return identity


def _read_identity(disk: Disk, path: str, node_id: NodeId) -> DirectoryIdentity:
    identity = identity_in(disk, path)
    if identity.node_id != node_id:
        raise CorruptData(
            f"{path} belongs to node {identity.node_id}, not to node {node_id}: "
            f"start with --node-id {identity.node_id} or choose another --data-dir"
        )
    return identity


def new_id(randomness: Randomness) -> str:
    """Sixteen random bytes in Kafka's form of ids: 22 characters, never beginning with a dash."""
    while True:
        text = urlsafe_b64encode(randomness.bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
