"""Indexes of a segment: offset to position, and timestamp to offset."""
