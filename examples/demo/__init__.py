"""`make demo`: the product from end to end.

orders.py      the orders and payments, with planted mistakes and fraud
folder.py      the folder of the demo, new or left by an earlier one
processes.py   the demo's programs: started, awaited, and ended with their child processes
broker.py      a real `penstock serve` on free ports
live.py        a steady producer and two consumer groups, with their lag
steps.py       the pipelines, as commands, and the expected lines of their reports
show.py        the sequence of the demo
"""
