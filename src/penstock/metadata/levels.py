"""Which formats a cluster writes: its level, one number that brokers of two releases can agree on.

    level 1   documents in the store of the versions in values.py, data directories of format 1

A release knows the levels from OLDEST to NEWEST. Brokers of a newer release read and write what the
cluster's level says, until somebody raises it (`penstock cluster features --upgrade`). Then older releases
can no longer join, and there is no way back.

Rule: whoever writes something that the release before cannot read asks the image for its level first.
"""

from typing import Final

FEATURE: Final = "penstock.version"
"""As clients are told of it, and as brokers register it."""
OLDEST: Final = 1
NEWEST = 1
