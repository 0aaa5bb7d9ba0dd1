"""`archive`: writes topics to a lake table, each record exactly once."""
