"""A simulation in which one seed decides everything: the order of events, and what fails and survives.

The code that runs in it is the production code; only time, disk, threads, network and metadata store are
simulated. docs/internals/simulator.md describes how to read a failing seed.
"""
