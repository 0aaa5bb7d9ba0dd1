"""Group coordinators on this broker: the runtime of their shards, long commands, and lag."""
