"""`archive`: topics written to a lake, each record exactly once."""
