"""HTTP: health and readiness of the broker, its metrics, the cluster and its consumer groups."""
