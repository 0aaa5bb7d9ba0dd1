"""Log output of the broker."""
