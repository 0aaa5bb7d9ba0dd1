"""The seam: the only code that touches the world.

Time, disk, network, randomness and the metadata store enter the rest of Penstock through the
protocols in this folder, so that a simulator can hand in a world of its own.
"""
