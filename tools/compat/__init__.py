"""Runs another project's test suite against Penstock and compares the outcomes with a list.

    suites.py       the projects that are recognised, and what each expects of a broker
    lists.py        tests/compat/*.toml: which tests are known to fail, and which do not apply, and why
    environment.py  an interpreter of its own for each suite, with the client it tests
    broker.py       the broker under test
    plugin.py       what pytest is given inside the suite's interpreter: it selects and records
    stand_ins.py    the same for fixtures that would start a Kafka of their own
    run.py          one run of one suite
    report.py       outcomes against the list, and what is printed
    served.py       the table of APIs in docs/compatibility.md

Rule 1: no suite's code enters this repository. The user gives a folder, and it is copied, not changed.
Rule 2: a test is never omitted silently: a test that does not apply is listed with the feature it needs.
Rule 3: a test that starts to fail fails the run, and so does a listed failure that starts to pass.
"""
