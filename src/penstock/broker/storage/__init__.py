"""The tasks around logs on disk: flushing, checkpoints, retention, compaction, reads from the device."""
