"""Cluster metadata in this broker: image, changes, membership, controller, failure detection."""
