"""Each command of `penstock group` explains itself."""

import sys

import pytest

from penstock.cli.main import main


@pytest.mark.parametrize("name", ["list", "describe", "reset", "delete"])
def test_each_command_of_groups_shows_examples(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", "group", name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert f"penstock group {name}" in capsys.readouterr().out.split("Examples:")[1]
