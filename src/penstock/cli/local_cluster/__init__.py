"""Local development cluster on one machine: plan, checks, processes."""
