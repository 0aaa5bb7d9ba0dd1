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

from penstock.spark.jvm import cache_folder

# What Spark's programs look for in their home. `python` is what is left out.
PARTS: Final = ("bin", "conf", "jars", "sbin")


@contextmanager
def quick_home(master: str, environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """A Java that is started in this block has SPARK_HOME set to such a folder."""
    python = environment.get("PYSPARK_PYTHON", sys.executable)
    if not master.startswith("local") or "SPARK_HOME" in environment or python != sys.executable:
        yield
        return
    with suppress(OSError):
        environment["SPARK_HOME"] = str(linked_home(installed_home(), cache_folder(environment)))
    try:
        yield
    finally:
        environment.pop("SPARK_HOME", None)


def installed_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).resolve().parent


def linked_home(installed: Path, cache: Path) -> Path:
    """One for each Spark that is installed. Whoever else makes the same one makes the same links."""
    home = cache / f"spark-{zlib.crc32(os.fsencode(installed)):08x}"
    home.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if not (installed / part).exists():
            (home / part).unlink(missing_ok=True)
        elif not (home / part).is_symlink():
            with suppress(FileExistsError):
                (home / part).symlink_to(installed / part)
    return home
