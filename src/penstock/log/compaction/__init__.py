"""Compaction: what may be cleaned, cleaning it into new segments, and swapping those in."""
