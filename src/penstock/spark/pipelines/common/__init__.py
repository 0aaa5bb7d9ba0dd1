"""Parts that all pipelines share: checkpoints, locks, running a query, reports."""
