"""A partition as a replica keeps it: its log, its role, its high watermark, and who waits for it."""
