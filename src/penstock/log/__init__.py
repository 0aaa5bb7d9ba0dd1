"""The log of one partition on one disk.

Every call here is synchronous. Append and read are calls on a Disk. What must become durable is returned as a
value (`Flush`, `Checkpoint`), which the caller writes or syncs away from the event loop.
"""
