"""Settings looked at before a broker starts with them."""

from pathlib import Path

from typer.testing import CliRunner, Result

from penstock.cli.main import app
from penstock.errors import ConfigError


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check-config", *arguments])


def test_defaults_are_ok_and_nothing_more_is_said() -> None:
    result = check()

    assert (result.exit_code, result.stdout) == (0, "ok\n")


def test_what_differs_from_the_defaults_is_listed_and_secrets_are_hidden(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('"num.partitions" = 6\n"ssl.key.password" = "secret"\n"log.retention.hours" = 168\n')

    result = check("--config", str(file), "--data-dir", "elsewhere")

    assert result.stdout == "ok\nlog.dirs = elsewhere\nnum.partitions = 6\nssl.key.password = (hidden)\n"


def test_every_problem_is_told_at_once() -> None:
    result = check("--set", "num.partitions=many", "--set", "no.such.key=1", "--kafka", "0.0.0.0:9092")

    assert isinstance(result.exception, ConfigError)
    problems = str(result.exception)
    assert "num.partitions = 'many'" in problems
    assert "no.such.key" in problems
    assert "--insecure" in problems


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    result = check("--config", str(tmp_path / "absent.toml"))

    assert "absent.toml: No such file" in str(result.exception)


def test_it_takes_what_serve_takes() -> None:
    def options(command: str) -> str:
        helped = CliRunner().invoke(app, [command, "--help"]).stdout
        return helped.split("Options:")[1].split("-h, --help")[0]

    assert options("check-config") == options("serve")
