"""Produce and Fetch: requests that append and read records, and those that wait for data or the disk."""
