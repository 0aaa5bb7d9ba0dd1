"""The setup that each of Spark's Python workers makes once.

A worker collects garbage after each task. The collector then visits all objects, most of which belong to
modules that are never unloaded: about 25 ms of processor time for each task, as much as the rest of a small
task. So these objects are excluded from collection when the first task begins.
"""

import gc

from pyspark import TaskContext

_is_frozen = False


def freeze_gc() -> None:
    """Freeze existing objects, but only in a process that runs a Spark task."""
    global _is_frozen
    if not _is_frozen and TaskContext.get() is not None:
        gc.freeze()
        _is_frozen = True
