"""Client connections: listeners, requests in and replies out, and the memory that requests may hold."""
