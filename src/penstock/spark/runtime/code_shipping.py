"""`format("penstock")` for executors on which Penstock is not installed: the code is sent along.

    penstock.spark.register(spark, ship=True)

This is for notebooks and checkouts. The packages that Penstock's own code imports must still be installed.
On a cluster of your own, install Penstock on it instead.

Spark pickles the class of a source to its planners, and readers and writers to its executors. Pickles refer
to Penstock's classes by name, so a process that unpickles one must be able to import them. So the class
here is pickled by value and carries an archive of the code. Readers and writers are pickled inside another
pickle, which is opened after the archive.

Rule: Nothing in this module refers to another module of Penstock's, or to a global that cannot be pickled.
"""

import atexit
import copyreg
import importlib
import importlib.util
import io
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

_LAYERS = ("config", "host", "protocol", "wire", "spark")


def code_carrying_data_source() -> type[DataSource]:
    """Class of a Spark data source whose pickle carries the code of this Penstock."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return type("ShippedSource", (ArchiveCarryingSource,), {"archive": archived_code()})


def archived_code() -> bytes:
    """The layers that executors use, as a zip file."""
    packages = Path(__file__).parents[3]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        files = [*(packages / "penstock").glob("*.py"), *(packages / "pyspark_penstock").glob("*.py")]
        for layer in _LAYERS:
            files += (packages / "penstock" / layer).rglob("*.py")
        for file in files:
            archive.write(file, file.relative_to(packages))
    return buffer.getvalue()


def unpack(archive: bytes) -> None:
    """Make the code importable in this process, unless a Penstock is importable already."""
    if importlib.util.find_spec("penstock") is not None:
        return
    sys.path.insert(0, write_archive(archive))
    importlib.invalidate_caches()


def write_archive(archive: bytes) -> str:
    """The name of a file with the archive.

    The file goes with this process, because Spark's workers run no exit handlers.
    """
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("penstock.zip")
        os.write(number, archive)
        return f"/proc/self/fd/{number}"
    folder = tempfile.mkdtemp(prefix="penstock-code-")  # which no other user can write to
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "penstock.zip")
    with open(path, "xb") as file:
        file.write(archive)
    return path


def unpickle_shipped(archive: bytes, pickled: bytes) -> Any:
    unpack(archive)
    kind, state = cloudpickle.loads(pickled)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


def with_code_archive(archive: bytes, carried: Any) -> Any:
    """The same object, whose pickles contain the code."""

    def reduced(each: Any) -> tuple[Any, ...]:
        state = each.__getstate__() if hasattr(each, "__getstate__") else each.__dict__
        return unpickle_shipped, (archive, cloudpickle.dumps((type(each), state)))

    copyreg.pickle(type(carried), reduced)
    return carried


class ArchiveCarryingSource(DataSource):
    archive = b""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def _source(self) -> DataSource:
        unpack(self.archive)
        made = importlib.import_module("pyspark_penstock").DefaultSource(self.options)
        assert isinstance(made, DataSource)
        return made

    def schema(self) -> Any:
        return self._source().schema()

    def reader(self, schema: Any) -> Any:
        return with_code_archive(self.archive, self._source().reader(schema))

    def streamReader(self, schema: Any) -> Any:
        return with_code_archive(self.archive, self._source().streamReader(schema))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return with_code_archive(self.archive, self._source().writer(schema, overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return with_code_archive(self.archive, self._source().streamWriter(schema, overwrite))
