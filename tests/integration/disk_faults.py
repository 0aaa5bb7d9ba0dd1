"""Real misfortunes of a disk, on a file system made for the test.

    power loss   an ext4 image is shut down without flushing its journal: what was not synced is gone
    full         a tmpfs of a few megabytes
    failed sync  strace makes the n-th fdatasync of a running process fail

Where the host cannot do one of them the test is skipped with the reason, so that the count shows it.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def require_root_and(*tools: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"this host has no {tool}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _mount_or_skip(*command: str) -> None:
    try:
        _run(*command)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this host cannot mount: {error.stderr.decode().strip()}")


class PowerCut:
    """An ext4 file system whose power can be cut and come back."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self._image = image
        self.path = mount_point
        self._is_mounted = False

    def mount(self) -> None:
        _mount_or_skip("mount", "-o", "loop", str(self._image), str(self.path))
        self._is_mounted = True

    def unmount(self) -> None:
        if self._is_mounted:
            _run("umount", str(self.path))
            self._is_mounted = False

    def cut(self) -> None:
        """From now on nothing reaches the image, and what had not reached it is lost."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(folder)


@contextmanager
def power_cut_disk(folder: Path, megabytes: int = 64) -> Iterator[PowerCut]:
    require_root_and("mkfs.ext4", "mount", "umount")
    image, mount_point = folder / "disk.image", folder / "disk"
    mount_point.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * 1024 * 1024)
    _run("mkfs.ext4", "-q", "-F", str(image))
    disk = PowerCut(image, mount_point)
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    require_root_and("mount", "umount")
    mount_point = folder / "small"
    mount_point.mkdir()
    _mount_or_skip("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mount_point))
    try:
        yield mount_point
    finally:
        _run("umount", "-l", str(mount_point))


@contextmanager
def failing_sync(pid: int, *, first: int = 1) -> Iterator[None]:
    """Every fdatasync of the process, from the `first` on, fails with EIO while this lasts."""
    require_root_and("strace")
    tracer = subprocess.Popen(
        [
            "strace",
            "-q",
            "-f",
            "-p",
            str(pid),
            "-e",
            "trace=fdatasync",
            "-e",
            f"inject=fdatasync:error=EIO:when={first}+",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait(10)
        if tracer.stderr is not None:
            tracer.stderr.close()
