"""Client connections: the listeners, bytes in and replies out, and the memory that requests may hold."""
