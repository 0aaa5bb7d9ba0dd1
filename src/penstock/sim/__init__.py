"""A world in which one seed decides everything: when things happen, what fails, what survives.

The code that runs in it is the production code; only time, disk, threads, network and store are made here.
docs/internals/simulator.md says how to read a failing seed.
"""
