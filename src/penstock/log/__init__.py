"""One partition's bytes on one disk.

Everything here is synchronous. Appending and reading are calls on a Disk; what must be made durable
is returned as a value (`Flush`, `Checkpoint`) for the shell to carry out away from the event loop.
"""
