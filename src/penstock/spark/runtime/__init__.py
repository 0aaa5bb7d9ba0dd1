"""Spark as a process on this machine: Java, its start, and what its Python workers need."""
