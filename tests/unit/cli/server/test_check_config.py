"""Settings looked at before a broker starts with them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.cli.server import check_config, serve
from penstock.errors import ConfigError

Captured = pytest.CaptureFixture[str]


def test_defaults_are_ok_and_nothing_more_is_said(capsys: Captured) -> None:
    check_config.main([])

    assert capsys.readouterr().out == "ok\n"


def test_what_differs_from_the_defaults_is_listed_and_secrets_are_hidden(
    tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('"num.partitions" = 6\n"ssl.key.password" = "secret"\n"log.retention.hours" = 168\n')

    check_config.main(["--config", str(file), "--data-dir", "elsewhere"])

    assert (
        capsys.readouterr().out
        == "ok\nlog.dirs = elsewhere\nnum.partitions = 6\nssl.key.password = (hidden)\n"
    )


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        check_config.main(
            ["--set", "num.partitions=many", "--set", "no.such.key=1", "--kafka", "0.0.0.0:9092"]
        )

    problems = str(refusal.value)
    assert "num.partitions = 'many'" in problems
    assert "no.such.key" in problems
    assert "--insecure" in problems


def test_a_setting_without_effect_is_a_warning(capsys: Captured) -> None:
    check_config.main(["--set", "zookeeper.connect=x"])

    said = capsys.readouterr()
    assert said.out == "ok\n"
    told = "warning: zookeeper.connect: a setting of Kafka without effect here"
    assert said.err.startswith(told)


@pytest.mark.parametrize("content", ['"num.partitions" = "many"\n', "num.partitions = 6\n", "what\n"])
def test_a_mistake_in_a_file_names_the_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"the config file {file}"):
        check_config.main(["--config", str(file)])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        check_config.main(["--config", str(tmp_path / "absent.toml")])


def test_it_takes_what_serve_takes(capsys: Captured) -> None:
    def options(command: Callable[[Sequence[str]], None]) -> str:
        with pytest.raises(SystemExit):
            command(["--help"])
        return capsys.readouterr().out.split("options:")[1].split("examples:")[0]

    assert options(check_config.main) == options(serve.main)
