"""The command itself: every command has help with examples, and none carries what others need."""

import importlib
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from penstock.cli.client_app import COMMANDS, app
from penstock.cli.main import main

TOPIC_COMMANDS = ("create", "list", "describe", "offsets", "alter", "delete", "truncate")
EVERY_COMMAND = [(), *((name,) for name in COMMANDS), *(("topic", name) for name in TOPIC_COMMANDS)]


def modules_after(*arguments: str) -> set[str]:
    """What is imported once a command has shown its help."""
    script = (
        "import sys; from penstock.cli.main import main\n"
        f"sys.argv = ['penstock', *{list(arguments)!r}]\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_every_command_explains_itself_with_examples(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", *command, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()

    assert not ended.value.code
    assert " ".join(("penstock", *command)) in capsys.readouterr().out.lower().split("examples:")[1]


def test_the_entry_point_imports_nothing_before_ctrl_c_is_understood() -> None:
    script = "import sys; before = {*sys.modules}; import penstock.cli.main; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) == {"penstock", "penstock.cli", "penstock.cli.main"}


def test_ctrl_c_while_a_command_is_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    for command in ("serve", "topic"):
        monkeypatch.setattr(sys, "argv", ["penstock", command])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 130


def test_a_signal_handler_of_a_start_does_not_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["penstock", "serve", "--node-id", "x"])

    with pytest.raises(SystemExit):
        main()

    assert signal.getsignal(signal.SIGTERM) is before


def test_the_list_of_commands_is_complete() -> None:
    result = CliRunner().invoke(app, ["--help"])

    assert all(f"  {name} " in result.stdout for name in COMMANDS)


def test_help_imports_no_command() -> None:
    modules = modules_after("--help")

    assert not {module for module, _ in COMMANDS.values()} & modules
    assert not {"rich", "confluent_kafka", "asyncio", "penstock.config"} & modules


def test_serve_imports_nothing_of_the_other_commands() -> None:
    modules = modules_after("serve", "--help")

    assert "penstock.cli.server.serve" in modules
    assert not {module for name, (module, _) in COMMANDS.items() if name != "serve"} & modules
    assert not {"confluent_kafka", "typer", "aiohttp"} & modules


def test_the_help_of_a_client_command_does_not_load_the_client() -> None:
    modules = modules_after("produce", "--help")

    assert not {"confluent_kafka", "rich", "penstock.cli.broker_connector"} & modules


def test_serve_after_another_word_is_rejected_with_what_to_type() -> None:
    result = CliRunner().invoke(app, ["--", "serve"])

    assert result.exit_code == 2
    assert "serve must come first: penstock serve" in result.output


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(app, ["prodcue"])

    assert result.exit_code == 2
    assert "No such command 'prodcue'. Did you mean 'produce'?" in result.output
    assert "Did you mean 'topic'?" in CliRunner().invoke(app, ["topics"]).output
    assert "Did you mean" not in CliRunner().invoke(app, ["xyz"]).output
