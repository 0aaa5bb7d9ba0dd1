"""A known mistake: one line of the source, changed as an engineer might have got it wrong."""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: str = ""
    """The file of tests that has to fail; empty: the simulator has to."""
    is_of_one_broker: bool = False
    """Whether the simulator's plans of a single broker have to fail."""
