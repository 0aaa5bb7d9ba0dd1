"""Compaction: selection of logs to clean, cleaning into new segments, and the swap of those segments."""
