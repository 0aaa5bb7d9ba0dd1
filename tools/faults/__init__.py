"""A cluster of real processes under faults, a history of what clients saw, and whether it is right."""
