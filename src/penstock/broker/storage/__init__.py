"""Background tasks for logs on disk: flushing, checkpoints, retention, compaction and device reads."""
