"""`python -m tools.faults`: what it refuses, and how it is interrupted."""

import os
import signal
from collections.abc import Iterator

import pytest

from tools.faults.__main__ import install_signal_handlers, options_of


@pytest.fixture
def signals() -> Iterator[None]:
    """Heeded as in a run, and as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install_signal_handlers()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("arguments", [["--faults", "0"], ["--minutes", "0"]])
def test_nothing_at_all_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options_of(arguments)
    assert ended.value.code == 2
    assert f"argument {arguments[0]}: 0 is no " in capsys.readouterr().err


@pytest.mark.usefixtures("signals")
def test_whoever_interrupts_twice_gets_everything_taken_down(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert capfd.readouterr().err == "interrupted: everything is being taken down\n"
