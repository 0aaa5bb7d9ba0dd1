"""Folder of a partition, with its partition.metadata file: when it is made, and what of it must be synced.

    MISSING      this log has made no folder. A folder of that name may be there: the remains of a deleted
                 topic. The first append makes the folder, or fails if records of that topic are in it.
    UNFINISHED   this log made the folder, and its first batch was rejected. No flush makes it durable; the
                 next append makes it again.
    COMPLETE     folder and partition.metadata are written. The next flush makes them durable.

    MISSING ──require──→ COMPLETE ──undo──→ UNFINISHED ──require──→ COMPLETE
    MISSING ──use_existing──→ COMPLETE ──make──→ COMPLETE

A log that is opened from disk uses the existing folder. `make` writes its metadata again, unless the process
before is known to have made the folder durable.
"""

from enum import Enum, auto

from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import Disk, File, SmallFile
from penstock.log.segment import LOG_SUFFIX
from penstock.log.shared_resources import OpenFiles


class FolderState(Enum):
    MISSING = auto()
    UNFINISHED = auto()
    COMPLETE = auto()


class PartitionFolder:
    """Folder of one partition."""

    __slots__ = ("_disk", "_new_files", "_path", "_state", "_unsynced_folders", "metadata_file", "open_files")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._state = FolderState.MISSING
        self.metadata_file: SmallFile | None = None
        """partition.metadata, written when the folder is made."""
        self.open_files: OpenFiles | None = None
        self._unsynced_folders: set[str] = set()
        self._new_files: list[File] = []
        """Files beside the segments, written once and open until the next flush."""

    @property
    def is_dirty(self) -> bool:
        return bool(self._unsynced_folders or self._new_files)

    def entries_changed(self) -> None:
        """Sync the folder with the next flush: a file was created or removed."""
        self._unsynced_folders.add(self._path)

    def use_existing(self) -> None:
        """Record that the folder of this partition is on disk already."""
        self._state = FolderState.COMPLETE

    def continue_as(self, reopened: "PartitionFolder") -> None:
        """Take over the state in which a truncation left the folder."""
        self._state = reopened._state

    def require(self) -> None:
        """Make the folder unless it is complete. StorageFailed: it belongs to a deleted topic."""
        if self._state is FolderState.COMPLETE:
            return
        is_foreign = self._state is FolderState.MISSING and self._disk.exists(self._path)
        if is_foreign and any(name.endswith(LOG_SUFFIX) for name in self._disk.list_folder(self._path)):
            raise StorageFailed(f"{self._path} holds the records of a topic that was deleted")
        self.make()

    def make(self) -> None:
        """Make the folder, or make it durable again. StorageFull: a complete folder stays complete."""
        self._disk.make_folder(self._path)
        if self._state is FolderState.MISSING:
            self._state = FolderState.UNFINISHED
        self._unsynced_folders.add(self._path.rpartition("/")[0])
        if self.metadata_file is not None:
            self._write_metadata_file(self.metadata_file)
        self._state = FolderState.COMPLETE

    def _write_metadata_file(self, metadata_file: SmallFile) -> None:
        if self.open_files is None:
            file = self._disk.open(metadata_file.path, create=True)
        else:
            file = self.open_files.open(self._disk, metadata_file.path, create=True)
            self.open_files.unsynced_new_files += 1
        self._new_files.append(file)
        try:
            file.write(0, metadata_file.content)
        except StorageFull:
            self.release()
            raise

    def undo(self) -> None:
        """Undo a folder whose first batch was rejected: no flush will sync it. The next append repeats it."""
        if self._new_files or self._state is not FolderState.COMPLETE:
            self.release()
            self._unsynced_folders.clear()
            if self._state is FolderState.COMPLETE:
                self._state = FolderState.UNFINISHED

    def take_unsynced(self) -> tuple[list[File], list[str]]:
        """Return the files and folders that must be synced. The caller syncs and releases the files."""
        files, self._new_files = self._new_files, []
        folders = sorted(self._unsynced_folders)
        self._unsynced_folders.clear()
        return files, folders

    def release(self) -> None:
        """Close the files that were not taken."""
        if self.open_files is not None:
            self.open_files.unsynced_new_files -= len(self._new_files)
        for file in self._new_files:
            file.release()
        self._new_files.clear()
