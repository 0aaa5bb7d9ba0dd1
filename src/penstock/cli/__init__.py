"""Implementation of the `penstock` command."""
