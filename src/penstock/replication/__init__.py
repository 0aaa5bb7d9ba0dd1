"""Replication of partitions: the log of each replica, its role, its high watermark, and the requests that
wait for it.
"""
