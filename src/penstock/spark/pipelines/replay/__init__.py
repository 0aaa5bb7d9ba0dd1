"""`replay`: from a lake back to a topic."""
