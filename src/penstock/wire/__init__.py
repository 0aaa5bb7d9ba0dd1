"""Kafka's protocol from the client's side, for those parts of Penstock that are clients themselves."""
