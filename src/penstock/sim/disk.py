"""A disk in memory that can be full, slow to sync, out of descriptors, fail a sync once, and lose power.

It can also return errors for some names.

`SimDisk` is the device. A process works on a `Mount` of it. When the process is killed or the power fails,
that mount is dead and every further call on it raises `PowerLost`, so that a dying process cannot change
the device any more.

Rule 1: Every call is counted, and the power can be set to fail at a given count, for example in the middle
        of a checkpoint.
Rule 2: Random decisions of a call come from the disk's own random numbers.
"""

from collections.abc import Callable, Sequence
from random import Random

from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import File, SmallFile, Space, TooManyOpenFiles
from penstock.sim.device import FileNode, FolderNode, Node
from penstock.types import Buffer

UNLIMITED_BYTES = 2**50
TEMPORARY_SUFFIX = ".tmp"
OPEN_FILES_MAX = 3
"""So few that files are closed and reopened in almost every run."""


class PowerLost(Exception):
    """The process that made this call has been killed."""


class SimDisk:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.root = FolderNode()
        self.calls = 0
        self.power_fails_at: int | None = None
        """The number of the call during which the power fails."""
        self.room_bytes = UNLIMITED_BYTES
        """How many bytes may still be written before the disk is full."""
        self.sync_fails = False
        """Whether the next sync of something dirty fails. It fails once."""
        self.open_files_max = OPEN_FILES_MAX
        self.descriptors: int | None = None
        """How many files a process may have open. None: no limit."""
        self.unreadable_paths: set[str] = set()
        """Paths for which `exists` fails with an input/output error."""
        self.cold_reads = 0.0
        """The probability that bytes are not in memory."""
        self.on_power_lost: Callable[[], None] = lambda: None
        self.on_create: Callable[[str], None] = lambda path: None
        """Called with the path of each file that is created."""

    def mount(self) -> "Mount":
        return Mount(self)

    def lose_power(self) -> None:
        """Let the power fail: of unsynced operations, some survive or none."""
        self.power_fails_at = None
        self.root.lose_power(self.random)

    def peek(self, path: str) -> bytes:
        """The content that a reader of the file would see. Not a counted call: it never fails."""
        node = self.visible_node(path)
        return bytes(node.seen) if isinstance(node, FileNode) else b""

    def durable_node(self, path: str) -> Node | None:
        """What a power failure at this moment would certainly leave under this name. None: nothing."""
        node: Node = self.root
        for name in _names(path):
            if not isinstance(node, FolderNode) or name not in node.stored:
                return None
            node = node.stored[name]
        return node

    def visible_node(self, path: str) -> Node | None:
        """What the processes of this machine find under this name. None: nothing."""
        node: Node = self.root
        for name in _names(path):
            if not isinstance(node, FolderNode) or name not in node.seen:
                return None
            node = node.seen[name]
        return node

    def count(self) -> bool:
        """Count a call. False if the power fails during it."""
        self.calls += 1
        return self.power_fails_at is None or self.calls < self.power_fails_at


class SimFile:
    def __init__(self, mount: "Mount", path: str, node: FileNode) -> None:
        self._mount = mount
        self._path = path
        self.node = node
        self._reference_count = 1
        mount.open_files += 1

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self.node.seen)

    def read(self, position: int, length: int) -> bytes:
        self._require_open()
        self._mount.step()
        return bytes(self.node.seen[position : position + length])

    def read_cached(self, position: int, length: int) -> bytes | None:
        self._require_open()
        self._mount.step()
        disk = self._mount.disk
        if length <= 0 or (disk.cold_reads and disk.random.random() < disk.cold_reads):
            return None
        if self.node.has_bit_rot:
            return None
        data = bytes(self.node.seen[position : position + length])
        return data if len(data) == length else None

    def write(self, position: int, data: Buffer) -> None:
        self._require_open()
        self._mount.step()
        disk = self._mount.disk
        grows = max(position + len(data) - len(self.node.seen), 0)
        if grows > disk.room_bytes:
            fits = bytes(data)[: len(data) - grows + disk.room_bytes]
            disk.room_bytes = 0
            self.node.write(position, fits)
            raise StorageFull(f"cannot write {self._path}: no space is left")
        disk.room_bytes -= grows
        self.node.write(position, bytes(data))

    def truncate(self, size: int) -> None:
        self._require_open()
        self._mount.step()
        self._mount.disk.room_bytes += len(self.node.seen) - size
        self.node.truncate(size)

    @property
    def is_shared(self) -> bool:
        return self._reference_count > 1

    def retain(self) -> None:
        self._require_open()
        self._reference_count += 1

    def release(self) -> None:
        self._require_open()
        self._reference_count -= 1
        self._mount.open_files -= self._reference_count == 0

    def _require_open(self) -> None:
        assert self._reference_count > 0, f"{self._path} is closed"


class Mount:
    """The disk as one process sees it, for as long as the process lives."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.is_dead = False
        self.has_failed_sync = False
        """Whether a sync of this process has failed."""
        self.open_files_max = disk.open_files_max
        self.open_files = 0
        self.on_call: Callable[[], None] | None = None
        """Called before each call is carried out. Other processes may run in the meantime."""

    def step(self) -> None:
        if self.is_dead:
            raise PowerLost
        if self.on_call is not None:
            self.on_call()
            # The process may have been killed while another one ran.
            if self.is_dead:
                raise PowerLost
        if not self.disk.count():
            self.is_dead = True
            self.disk.on_power_lost()
            raise PowerLost

    # Names

    def _find(self, path: str) -> Node | None:
        return self.disk.visible_node(path)

    def _folder(self, path: str) -> FolderNode:
        node = self._find(path)
        if not isinstance(node, FolderNode):
            raise StorageFailed(f"there is no folder {path}")
        return node

    def _parent(self, path: str) -> tuple[FolderNode, str]:
        *names, last = _names(path)
        return self._folder("/".join(names)), last

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.step()
        if self.disk.descriptors is not None and self.open_files >= self.disk.descriptors:
            raise TooManyOpenFiles(f"cannot open {path}: too many files are open")
        node = self._find(path)
        if node is None and create:
            folder, name = self._parent(path)
            node = FileNode()
            folder.change({name: node})
            self.disk.on_create(path)
        if not isinstance(node, FileNode):
            raise StorageFailed(f"there is no file {path}")
        return SimFile(self, path, node)

    def exists(self, path: str) -> bool:
        self.step()
        if path in self.disk.unreadable_paths:
            raise StorageFailed(f"cannot look at {path}: input/output error")
        return self._find(path) is not None

    def list_folder(self, path: str) -> list[str]:
        self.step()
        return sorted(self._folder(path).seen)

    def make_folder(self, path: str) -> None:
        self.step()
        folder = self.disk.root
        for name in _names(path):
            if name not in folder.seen:
                folder.change({name: FolderNode()})
            found = folder.seen[name]
            assert isinstance(found, FolderNode), f"{name} in {path} is a file"
            folder = found

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return file.read(0, UNLIMITED_BYTES)
        finally:
            file.release()

    def size_of(self, path: str) -> int:
        self.step()
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise StorageFailed(f"there is no file {path}")
        return len(node.seen)

    def rename(self, source: str, target: str) -> None:
        self.step()
        folder, old = self._parent(source)
        other, new = self._parent(target)
        node = folder.seen.get(old)
        if node is None:
            raise StorageFailed(f"there is no {source}")
        if isinstance(replaced := folder.seen.get(new), FileNode):
            self.disk.room_bytes += len(replaced.seen)
        if folder is other:
            folder.change({old: None, new: node})
        else:
            other.change({new: node})
            folder.change({old: None})

    def remove(self, path: str) -> None:
        self.step()
        folder, name = self._parent(path)
        node = folder.seen.get(name)
        if isinstance(node, FileNode):
            self.disk.room_bytes += len(node.seen)
            folder.change({name: None})

    def remove_folder(self, path: str) -> None:
        self.step()
        node = self._find(path)
        if node is None:
            return
        assert isinstance(node, FolderNode), f"{path} is a file"
        for name in sorted(node.seen):
            if isinstance(node.seen[name], FolderNode):
                self.remove_folder(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        folder, name = self._parent(path)
        folder.change({name: None})

    def space(self, path: str) -> Space:
        return Space(UNLIMITED_BYTES, max(self.disk.room_bytes, 0))

    # Durability

    def sync(self, files: Sequence[File], folders: Sequence[str]) -> None:
        for file in files:
            assert isinstance(file, SimFile)
            self._sync_node(file.node, file.path)
        for path in folders:
            node = self._find(path)
            if isinstance(node, FolderNode):
                self._sync_node(node, path)

    def reserve_sync_descriptors(self, path: str, threads: int) -> None:
        """Check that the folder exists. Simulated syncs need no descriptor."""
        self._folder(path)

    def close_sync_descriptors(self) -> None:
        """Do nothing: no descriptor is held."""

    def _sync_node(self, node: Node, path: str) -> None:
        self.step()
        if self.disk.sync_fails and isinstance(node, FileNode) and node.is_dirty:
            self.disk.sync_fails = False
            node.fail_sync()
            self.has_failed_sync = True
            raise StorageFailed(f"cannot sync {path}: input/output error")
        node.sync()

    def store(self, writes: Sequence[SmallFile]) -> None:
        """Replace small files in the steps of the real disk; the process may die at each of them."""
        temporaries = [write.path + TEMPORARY_SUFFIX for write in writes]
        try:
            files: list[SimFile] = []
            try:
                for write, temporary in zip(writes, temporaries, strict=True):
                    self.remove(temporary)
                    files.append(self.open(temporary, create=True))
                    files[-1].write(0, write.content)
                self.sync(files, ())
            finally:
                for file in files:
                    file.release()
            # The contents are synced before the renames, and the folders after them: a name never refers to
            # torn content.
            for write, temporary in zip(writes, temporaries, strict=True):
                self.rename(temporary, write.path)
            self.sync((), sorted({write.path.rpartition("/")[0] for write in writes}))
        except StorageFull:
            for temporary in temporaries:
                self.remove(temporary)
            raise


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
