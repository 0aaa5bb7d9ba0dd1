"""Replication of partitions: log, role and high watermark of each replica, and requests that wait for it."""
