"""The type of the readiness check behind /health/ready."""

from collections.abc import Callable

Readiness = Callable[[], str | None]
"""Why the broker is not ready; None when it is."""
