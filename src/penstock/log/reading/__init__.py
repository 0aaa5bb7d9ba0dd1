"""Reading a log: from memory, from the device, and by timestamp."""
