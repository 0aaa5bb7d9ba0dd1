"""A worker sets aside what it has imported, once; other processes do not."""

import subprocess
import sys

PROGRAM = """
import gc
from pyspark import TaskContext
from penstock.spark.runtime.workers import freeze_gc
freeze_gc()
elsewhere = gc.get_freeze_count()
TaskContext._getOrCreate()
freeze_gc()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
freeze_gc()
print(elsewhere == 0, first > 0, gc.get_freeze_count() == first)
"""


def test_a_worker_freezes_what_is_there_at_its_first_task_only() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
