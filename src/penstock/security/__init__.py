"""Principals, and their permissions."""
