"""Access to the host: the only code that uses clock, disk, network, randomness and metadata store directly.

The rest of Penstock uses them through the protocols in this folder, so that a simulator can supply its own.
"""
