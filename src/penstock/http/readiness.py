"""The question that /health/ready answers."""

from collections.abc import Callable

Readiness = Callable[[], str | None]
"""Why the broker is not ready; None when it is."""
