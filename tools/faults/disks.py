"""Disks of a lab's machines, and their faults.

image    an ext4 file system in a file in memory: can be full, and can lose unsynced data
memory   a tmpfs: can be full
folder   a folder of the host's disk: has no faults
"""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.integration.disk_faults import PowerCut
from tools.faults.lab import Ability, Disk, UnsupportedHost

DISK_BYTES: Final = 512 << 20
TRIAL_BYTES: Final = 16 << 20
FILLER_STEPS: Final = (16 << 20, 1 << 20, 4096)
BUSY_SECONDS_MAX: Final = 20.0


class Folder:
    cannot: Final = {
        Ability.DISK_FULL: "the disk belongs to the host, not to the machine",
        Ability.POWER_LOSS: "the disk belongs to the host, not to the machine",
    }

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def fill(self) -> None:
        raise UnsupportedHost(self.cannot[Ability.DISK_FULL])

    def free(self) -> None:
        pass

    def lose_power(self) -> None:
        raise UnsupportedHost(self.cannot[Ability.POWER_LOSS])

    def restore_power(self) -> None:
        pass

    def remove(self) -> None:
        shutil.rmtree(self.path)


class _MountedDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._filler = path / "filler"

    def fill(self) -> None:
        """Allocate all free space, down to the last block, without writing to it."""
        with self._filler.open("wb") as file:
            end = 0
            for step in FILLER_STEPS:
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), end, step)
                        end += step

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


class MemoryDisk(_MountedDisk):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        mount_tmpfs(path, DISK_BYTES)

    def lose_power(self) -> None:
        raise UnsupportedHost("a disk in memory keeps nothing over a power loss")

    def restore_power(self) -> None:
        pass

    def remove(self) -> None:
        unmount(self.path)
        self.path.rmdir()


class ImageDisk(_MountedDisk):
    """An ext4 image, in another folder than its mount point."""

    def __init__(self, path: Path, image: Path, size: int = DISK_BYTES) -> None:
        super().__init__(path)
        with image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        self._power = PowerCut(image, path)
        self._image = image
        self._has_power = False
        self.restore_power()

    def lose_power(self) -> None:
        self._power.cut()
        self._has_power = False

    def restore_power(self) -> None:
        if self._has_power:
            return
        self._unmount()
        try:
            self._power.mount()
        except pytest.skip.Exception as problem:
            raise UnsupportedHost(str(problem)) from None
        self._has_power = True

    def _unmount(self) -> None:
        """Unmount, not lazily: while a process has a file open, the next mount would show unsynced data."""
        deadline = time.monotonic() + BUSY_SECONDS_MAX
        while True:
            try:
                self._power.unmount()
            except subprocess.CalledProcessError:  # a killed process has not ended yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def remove(self) -> None:
        unmount(self.path)
        self.path.rmdir()
        self._image.unlink()


def mount_tmpfs(path: Path, size: int) -> None:
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path))


def unmount(path: Path) -> None:
    """Unmount lazily, at the end of the lab: processes that still have files open are about to end."""
    _run("umount", "--lazy", str(path))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)


def why_no_images(folder: Path) -> str | None:
    """Try a small image. Returns the reason why images do not work here; None: they work."""
    if os.geteuid() != 0:
        return "power loss needs root, which may mount an image"
    if shutil.which("mkfs.ext4") is None:
        return "power loss needs mkfs.ext4 (package e2fsprogs)"
    try:
        disk = ImageDisk(folder / "trial", folder / "trial.image", TRIAL_BYTES)
        disk.lose_power()
        disk.restore_power()
        disk.remove()
    except UnsupportedHost as problem:
        return f"power loss: {problem}"
    except (subprocess.CalledProcessError, OSError) as problem:
        return f"power loss: an ext4 image cannot be shut down here ({problem})"
    return None


def make_disk(path: Path, image: Path | None) -> Disk:
    return MemoryDisk(path) if image is None else ImageDisk(path, image)
