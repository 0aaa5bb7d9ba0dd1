"""State machines whose database is a partition of an internal topic."""
