"""System calls that the standard library of Python 3.11 does not have, each with a substitute."""
