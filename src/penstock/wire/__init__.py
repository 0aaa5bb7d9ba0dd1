"""The wire client: Kafka's protocol from the client's side, for the parts of Penstock that are clients."""
