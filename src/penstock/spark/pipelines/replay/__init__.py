"""`replay`: writes rows of a lake table back to a topic."""
