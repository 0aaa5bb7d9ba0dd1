"""Source of randomness, passed as an argument, so that a simulation can seed it."""

import os
from typing import Protocol


class Randomness(Protocol):
    def bytes(self, count: int) -> bytes: ...


class SystemRandomness:
    def bytes(self, count: int) -> bytes:
        return os.urandom(count)
