"""What Java says while it starts is told only if it does not start, and then in one line."""

import os
import subprocess
import sys

import pytest

from penstock.spark.runtime.hide_jvm_output import CAPTURED_BYTES_MAX, failure_reason, stderr_kept

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
    assert failure_reason(NOISE + text) == reason


def test_what_a_program_writes_is_kept_from_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with stderr_kept() as kept:
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('noise')"], check=True)
        assert kept is not None
        assert kept.text() == "noise"
    os.write(2, b"sense")
    assert capfd.readouterr().err == "sense"


def test_a_program_that_goes_on_talking_neither_waits_nor_fills_a_disk(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Java keeps the stderr that it was started with."""
    talking = "import sys; sys.stdin.read(); sys.stderr.write('x' * 1_000_000 + 'the end')"
    with stderr_kept() as kept:
        program = subprocess.Popen([sys.executable, "-c", talking], stdin=subprocess.PIPE)
    program.communicate(timeout=30)
    assert kept is not None
    assert kept.text() == "x" * (CAPTURED_BYTES_MAX - 7) + "the end"
    assert capfd.readouterr().err == ""


def test_a_stderr_that_is_closed_needs_no_care() -> None:
    program = (
        "from penstock.spark.runtime.hide_jvm_output import stderr_kept\n"
        "with stderr_kept() as kept:\n    print(kept)\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"None\n")
