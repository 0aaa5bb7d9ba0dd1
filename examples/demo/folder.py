"""The folder of a demo: new, empty, or left by an earlier demo and then replaced.

Rule: only folders that a demo made are removed. A file marks such a folder. The mark is written before
      anything else, and is locked while a demo runs.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.demo.processes import DemoFailed

MARK = ".made-by-penstock-demo"


@contextmanager
def demo_folder(folder: Path) -> Iterator[Path]:
    """Prepare the folder, empty but for its mark, and keep it locked until the block ends."""
    _refuse_what_is_not_ours(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = (folder / MARK).open("a")
    except OSError as problem:
        raise DemoFailed(f"cannot use {folder}: {problem.strerror}; give another with --folder") from problem
    with mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise DemoFailed(
                f"a demo runs in {folder}; wait for its end or give another --folder"
            ) from problem
        _empty(folder)
        yield folder


def _refuse_what_is_not_ours(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DemoFailed(f"{folder} is no folder; give another with --folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise DemoFailed(
            f"{folder} holds what no demo has made, and is left as it is; give another folder with --folder"
        )


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()
