"""Replication between brokers: following, serving followers, and ISR changes."""
