"""A cluster on one machine, for development: its plan, its checks, its processes."""
