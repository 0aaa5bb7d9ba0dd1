"""Sends the same requests to Apache Kafka and to Penstock and compares the responses field by field.

    kafka.py, penstock.py   start and stop the two brokers
    coordinators.py         whether a broker coordinates groups yet
    wire.py                 one connection; a broker that closes it, or stays silent, has answered too
    steps.py                what a scenario is made of
    scenarios/              the questions
    replies.py              an answer as plain values, with what must vary from run to run taken out
    compare.py              two answers side by side
    gaps.py                 differences that are meant; docs/protocol-gaps.md says why
    run.py                  both brokers through all scenarios, in step
    stories.py              the same through real clients
    report.py               what is printed

Rule 1: a scenario uses topics of its own, named after it, so that scenarios do not disturb one another.
Rule 2: what is sent is the same in every run (constant timestamps, constant batches), so that answers
        recorded from Kafka can be compared later on a machine without Java.
"""
