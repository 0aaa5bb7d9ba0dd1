"""HTTP: whether the broker lives and can be used, its metrics, and its consumer groups."""
