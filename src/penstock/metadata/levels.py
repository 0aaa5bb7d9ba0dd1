"""The level of a cluster: one number, which determines the formats that brokers of two releases write.

    level 1   documents of version 1 in the store (documents.py), data directories of format 1

A release supports the levels from OLDEST to NEWEST. Brokers of a newer release read and write the formats of
the cluster's level until an operator raises it (`penstock cluster features --upgrade`). After that older
releases can no longer join, and the level cannot be lowered again.

Rule: code that writes a format which the previous release cannot read must first check the level in the
      image.
"""

from typing import Final

FEATURE: Final = "penstock.version"
"""The feature name in ApiVersions replies and in broker registrations."""
OLDEST: Final = 1
NEWEST = 1
