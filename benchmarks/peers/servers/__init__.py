"""The servers under comparison: how each is started, stopped and found missing."""
