"""A simulation in which one seed decides everything: when events happen, what fails, what survives a
failure.

The code that runs in it is the production code; only time, disk, threads, network and metadata store are
simulated. docs/internals/simulator.md describes how to read a failing seed.
"""
