"""Spark as a process on this machine: Java, its start, and the needs of its Python workers."""
