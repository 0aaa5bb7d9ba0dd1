"""Topics as Spark sources: batch and stream, planning, positions, and the tasks that read."""
