"""Pure decisions about the cluster, made from one image: topics, placement, elections, ISR, reassignments."""
