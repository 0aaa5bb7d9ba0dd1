"""The broker: connections, the router, one file per Kafka API, and the tasks that keep it all going."""
