"""Cluster metadata in one broker: image, changes, membership, controller loop, failure detection."""
