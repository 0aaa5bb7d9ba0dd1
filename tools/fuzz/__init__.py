"""Coverage-guided fuzzing of everything that reads untrusted bytes; needs the extra `fuzz`.

    python -m tools.fuzz --list
    python -m tools.fuzz --target frames --seconds 60

    targets.py    what is fuzzed: a name, its seeds, and a function that takes any bytes
    seeds.py      valid inputs to start from
    __main__.py   runs one target in a process of its own, and says what it found

Rule 1: a target accepts only the errors that the production callers handle. Any other error is a finding.
Rule 2: a target also checks the result: sizes, limits, and that decoding again gives the same value.
Rule 3: the corpus of a target grows in .cache/fuzz and is used again by the next run.
"""
