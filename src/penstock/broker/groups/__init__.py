"""Group coordinators of one broker: runtime of the shards, chunked commands, and lag reports."""
