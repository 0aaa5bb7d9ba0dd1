"""What retention removed: whether pipelines go on, where they do, and what they say if not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import CommandFailed
from penstock.spark.options.options import stream_read_settings
from penstock.spark.pipelines.common.query_run import reporting_data_loss
from penstock.spark.pipelines.detect.detect import DetectSettings
from penstock.spark.pipelines.detect.rules import DetectRules, StreamSpec
from penstock.spark.pipelines.etl.spec import EtlSpec
from penstock.spark.pipelines.etl.stage_topic import clamped_starts
from penstock.spark.pipelines.etl.stages import EtlSettings

ACCESS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize("allow_loss", [False, True])
def test_a_loss_ends_a_query_unless_it_is_allowed(allow_loss: bool) -> None:
    spec = cast(EtlSpec, SimpleNamespace(isolation="read_committed"))
    etl = EtlSettings(spec, ACCESS, ("load",), allow_loss=allow_loss)
    rules = DetectRules(StreamSpec(), ())
    detect = DetectSettings("t", "a", rules, ACCESS, Path("checkpoint"), allow_loss=allow_loss)
    read: list[dict[str, Any]] = [{**etl.reading, "subscribe": "t"}, detect.read_options]
    assert [stream_read_settings(each).fail_on_data_loss for each in read] == [not allow_loss] * 2


def test_a_loss_is_told_with_the_option_that_commands_have() -> None:
    with (
        pytest.raises(CommandFailed, match=r"To go on with what is there, give --allow-loss$"),
        reporting_data_loss(),
    ):
        raise CommandFailed("gone. To go on with what is there, set the option failOnDataLoss to false")


def test_a_note_is_followed_only_to_places_that_the_topic_has() -> None:
    noted = {"0": 50, "1": 50, "2": 50, "3": 50}
    firsts = {"0": 0, "1": 60, "2": 10, "3": 50, "4": 5}
    ends = {"0": 100, "1": 100, "2": 40, "3": 50, "4": 9}
    assert clamped_starts(noted, firsts, ends) == {"0": 50, "1": 60, "2": 10, "3": 50, "4": 5}
