"""Records of transactions that were taken back, or are open, are read only by those who ask for them."""

import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.pipeline.app import pipeline_app
from penstock.spark.options.options import batch_read_settings, stream_read_settings
from penstock.spark.pipelines.archive.archive import ArchiveSettings
from penstock.spark.pipelines.audit.audit import AuditSettings
from penstock.spark.pipelines.detect.detect import DetectSettings
from penstock.spark.pipelines.detect.rules import read_rules
from penstock.spark.pipelines.etl.spec_file import InvalidSpec, read_spec
from penstock.spark.pipelines.etl.stages import EtlSettings
from penstock.spark.pipelines.insights.insights import InsightsSettings, _read_options

ACCESS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
LEVELS = ("read_committed", "read_uncommitted")
SPEC = """
name = "orders"
{line}
[extract]
from = "topic"
topic = "raw"
schema = "id bigint"
[load]
to = "topic"
topic = "loaded"
"""
RULES = """
[stream]
{line}
[[rule]]
name = "many"
kind = "count"
within = "1m"
at_least = 5
"""


def line_of(level: str | None) -> str:
    return "" if level is None else f'isolation = "{level}"'


def etl(folder: Path, in_file: str | None = None, given: str | None = None) -> EtlSettings:
    file = folder / "etl.toml"
    file.write_text(SPEC.format(line=line_of(in_file)))
    return EtlSettings(read_spec(file), ACCESS, ("load",), isolation=given)


def detect(folder: Path, in_file: str | None = None, given: str | None = None) -> DetectSettings:
    file = folder / "rules.toml"
    file.write_text(RULES.format(line=line_of(in_file)))
    return DetectSettings("t", "a", read_rules(file), ACCESS, folder, isolation=given)


def is_committed(options: dict[str, str]) -> bool:
    return stream_read_settings({"subscribe": "t", **options}).read_committed


def test_a_read_without_an_isolation_level_is_read_committed() -> None:
    options = {**ACCESS, "subscribe": "t"}
    for settings in (batch_read_settings, stream_read_settings):
        assert settings(options).read_committed
        assert not settings({**options, "kafka.isolation.level": "read_uncommitted"}).read_committed


def test_every_pipeline_reads_what_was_committed_unless_told_otherwise(tmp_path: Path) -> None:
    archive = ArchiveSettings(("t",), tmp_path, ACCESS)
    insights = InsightsSettings("t", ACCESS, tmp_path)
    assert is_committed(archive.read_options)
    assert not is_committed(archive._replace(isolation="read_uncommitted").read_options)
    assert batch_read_settings(_read_options(insights, {})).read_committed
    other = insights._replace(isolation="read_uncommitted")
    assert not batch_read_settings(_read_options(other, {})).read_committed
    assert AuditSettings(("t",), ACCESS).isolation == "read_committed"


@pytest.mark.parametrize("in_file", [None, *LEVELS])
@pytest.mark.parametrize("given", [None, *LEVELS])
def test_what_is_given_to_the_command_wins_over_the_file(
    tmp_path: Path, in_file: str | None, given: str | None
) -> None:
    expected = (given or in_file or "read_committed") == "read_committed"
    assert is_committed(etl(tmp_path, in_file, given).reading) == expected
    assert is_committed(detect(tmp_path, in_file, given).read_options) == expected


def test_a_level_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="isolation: is 'serializable' and must be one of read_committed"):
        etl(tmp_path, "serializable")
    with pytest.raises(Exception, match="isolation is 'serializable': give one of read_committed"):
        detect(tmp_path, "serializable")


@pytest.mark.parametrize("command", ["archive", "detect", "etl", "insights", "audit"])
def test_commands_have_the_option(command: str) -> None:
    importlib.import_module(f"penstock.cli.pipeline.{command}")
    shown = CliRunner().invoke(pipeline_app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert "--isolation" in shown.output
