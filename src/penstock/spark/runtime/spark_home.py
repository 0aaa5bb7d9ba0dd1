"""The folder from which Spark starts on one machine: links to the installed one, without a zip file.

Spark points its Python processes to a zip file with its own modules, ahead of the installed ones. Python
caches no compiled code for a zip file, so each of the dozen processes that a small query starts compiles
Spark again: about 0.7 s of processor time each. In a folder of links without the zip file, Python finds the
installed modules, which are the same.

Rule 1: The folder is used only where workers run on this Python and this machine. Clusters get the zip
        file.
Rule 2: The folder only saves time. Where it cannot be created, Spark starts from its own.
"""

import os
import sys
import zlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.spark.runtime.jvm import cache_folder

# The folders that Spark's programs need in their home. `python`, with the zip file, is left out.
PARTS: Final = ("bin", "conf", "jars", "sbin")


@contextmanager
def linked_spark_home(master: str, environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Set SPARK_HOME to such a folder for a Java that is started in this block."""
    home = None
    if master.startswith("local") and "SPARK_HOME" not in environment and _is_this_python(environment):
        # Without a cache, or a home folder for one, Spark starts from its own folder.
        with suppress(OSError, RuntimeError):
            installed = installed_spark_home()
            home = None if installed is None else make_linked_home(installed, cache_folder(environment))
    if home is None:
        yield
        return
    environment["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        environment.pop("SPARK_HOME", None)


def _is_this_python(environment: MutableMapping[str, str]) -> bool:
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return all(environment.get(name, sys.executable) == sys.executable for name in names)


def installed_spark_home() -> Path | None:
    """The home that PySpark would start from. None if it is not where pip puts it."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    home, package = Path(_find_spark_home()).resolve(), Path(pyspark.__file__).resolve().parent
    return home if package in (home, *home.parents) else None


def make_linked_home(installed: Path, cache: Path) -> Path | None:
    """Create the folder of links, one for each installed Spark.

    Concurrent processes create the same links.

    None if the result would not be a Spark, or not that one.
    """
    home = cache / f"spark-{zlib.crc32(os.fsencode(installed)):08x}"
    home.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if not (installed / part).exists():
            (home / part).unlink(missing_ok=True)
        elif not (home / part).is_symlink():
            with suppress(FileExistsError):
                (home / part).symlink_to(installed / part)
    is_whole = all((home / part).samefile(installed / part) for part in ("bin", "jars"))
    return home if is_whole and (home / "bin" / "spark-submit").is_file() else None
