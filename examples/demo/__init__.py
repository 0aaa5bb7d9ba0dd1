"""`make demo`: the product from end to end.

orders.py      what is sent, and what is planted in it
folder.py      where everything is kept, and what may be replaced
processes.py   programs of the demo: started, waited for, and ended with all that they started
broker.py      a real `penstock serve` on free ports
live.py        a steady producer and two consumer groups, with their lag
steps.py       the pipelines, as commands, and what their reports must say
show.py        the order of it all
"""
