"""Consumer groups: who reads which partition, and how far it has come."""
