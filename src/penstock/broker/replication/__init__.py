"""Replication between brokers: fetching from leaders, serving followers, ISR changes, damaged replicas."""
