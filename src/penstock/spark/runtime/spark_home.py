"""The folder that Spark starts from on one machine: the one that pip installed, but for a zip file.

Spark points its Python processes to a zip file with its own modules, ahead of what pip installed. Python
keeps nothing compiled of a zip file, so each of the dozen processes that a small query starts compiles Spark
again: about 0.7 s of processor time each. In a folder of links without the zip file, Python finds the
installed modules, which are the same ones.

Rule 1: only where workers run on this Python and this machine. Clusters are sent the zip file.
Rule 2: it is for speed alone. Where the folder cannot be made, Spark starts from its own.
"""

import os
import sys
import zlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.spark.runtime.jvm import cache_folder

# What Spark's programs look for in their home. `python` is what is left out.
PARTS: Final = ("bin", "conf", "jars", "sbin")


@contextmanager
def linked_spark_home(master: str, environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """A Java that is started in this block has SPARK_HOME set to such a folder."""
    home = None
    if master.startswith("local") and "SPARK_HOME" not in environment and _is_this_python(environment):
        # Where there is no cache, or no home for one, the user has none of this and all of Spark.
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
    """The one that PySpark would start; None if it is not where pip puts it."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    home, package = Path(_find_spark_home()).resolve(), Path(pyspark.__file__).resolve().parent
    return home if package in (home, *home.parents) else None


def make_linked_home(installed: Path, cache: Path) -> Path | None:
    """One for each Spark that is installed. Whoever else makes the same one makes the same links.

    None if it would not be a Spark, or not that one.
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
