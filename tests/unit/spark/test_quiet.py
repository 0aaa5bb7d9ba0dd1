"""What Java says while it starts is told only if it does not start, and then in one line."""

import os
import subprocess
import sys

import pytest

from penstock.spark.quiet import reason_in, said, stderr_kept

NOISE = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/15 19:12:01 WARN NativeCodeLoader: Unable to load native-hadoop library
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'Exception in thread "main" org.apache.spark.SparkException: Master must start so\n\tat a.B\n',
            "Master must start so",
        ),
        (
            "Invalid maximum heap size: -Xmxlots\nError: Could not create the Java Virtual Machine.\n",
            "Invalid maximum heap size: -Xmxlots",
        ),
        ("something else\n\tat a.B\n", "something else"),
        ("", None),
    ],
)
def test_the_line_that_says_why_is_found(text: str, reason: str | None) -> None:
    assert reason_in(NOISE + text) == reason


def test_what_a_program_writes_is_kept_from_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with stderr_kept() as kept:
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('noise')"], check=True)
        assert said(kept) == "noise"
    os.write(2, b"sense")
    assert capfd.readouterr().err == "sense"
