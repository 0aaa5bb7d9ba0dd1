"""The error of every check of the simulator."""


class InvariantViolation(AssertionError):
    """An invariant does not hold."""
