"""What every one of Spark's Python workers does once.

A worker collects garbage after each task. That goes through all objects there are, most of them of modules
which a worker never lets go of: about 25 ms of processor time a task, as much as the rest of a small one.
So they are set aside when the first task begins.
"""

import gc

from pyspark import TaskContext

_is_frozen = False


def freeze_gc() -> None:
    """Does nothing where no task of Spark runs: other processes keep their own ways with garbage."""
    global _is_frozen
    if not _is_frozen and TaskContext.get() is not None:
        gc.freeze()
        _is_frozen = True
