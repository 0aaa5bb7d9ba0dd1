"""`python -m penstock` on a machine whose clock has moved on.

python -m tests.spark.moved_clock SECONDS pipeline replay ...
"""

import runpy
import sys
import time

moved_s = float(sys.argv.pop(1))
real_time, real_time_ns = time.time, time.time_ns
time.time = lambda: real_time() + moved_s
time.time_ns = lambda: real_time_ns() + int(moved_s * 1e9)
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
