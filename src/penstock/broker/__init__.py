"""The broker: connections, the router, one file for each Kafka API, and the background tasks."""
