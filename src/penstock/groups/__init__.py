"""Consumer groups: membership, partition assignment and committed offsets."""
