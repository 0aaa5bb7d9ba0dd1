"""Settings: declared once, typed, bounded, described and changed by pure functions.

Settings have Kafka's names; code uses attributes with the unit last. Read `setting.py` first (what a declared
setting is), then `layers.py` (which of several given values is effective).
"""
