"""HTTP: for now, whether the broker lives and whether it can be used."""
