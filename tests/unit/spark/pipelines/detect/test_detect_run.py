"""What `detect` asks the cluster before it starts, and what it makes of rows of a bucket, without Spark."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest

from penstock.errors import CommandFailed
from penstock.spark.pipelines.detect import detect
from penstock.spark.pipelines.detect.detect import DetectSettings, check
from penstock.spark.pipelines.detect.query import evaluator
from penstock.spark.pipelines.detect.rules import DetectRule, DetectRules, RuleKind, StreamSpec
from penstock.types import NO_TOPIC_ID, TopicId
from penstock.wire.cluster_metadata import TopicMetadata

RULES = DetectRules(StreamSpec(), (DetectRule("many", RuleKind.COUNT, 2, 60_000),))
OLD, NEW = TopicId(b"a" * 16), TopicId(b"b" * 16)


class ForgetfulClient:
    """Client of brokers that do not know the topic in some of the first replies."""

    def __init__(self, forgets: set[int]) -> None:
        self._forgets = forgets
        self._answers = 0

    def topics(self, names: list[str], ids: Mapping[str, TopicId] | None = None) -> dict[str, TopicMetadata]:
        self._answers += 1
        if self._answers in self._forgets:
            return {}
        return {name: self.topic(name) for name in names}

    def topic(self, name: str, topic_id: TopicId = NO_TOPIC_ID) -> TopicMetadata:
        return TopicMetadata(name, OLD, 1, internal=False)

    def create_topic(self, name: str, partitions: int) -> None:
        pass


def settings_in(folder: Path, forgets: set[int], monkeypatch: pytest.MonkeyPatch) -> DetectSettings:
    @contextmanager
    def cluster(access: object) -> Iterator[ForgetfulClient]:
        yield ForgetfulClient(forgets)

    monkeypatch.setattr(detect, "open_client", cluster)
    return DetectSettings("payments", "alerts", RULES, {}, folder / "checkpoint")


@pytest.mark.parametrize("forgets", [{1}, {2}])
def test_a_topic_that_brokers_forget_for_one_answer_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: set[int]
) -> None:
    assert check(settings_in(tmp_path, set(), monkeypatch)) == OLD
    (tmp_path / "checkpoint" / "metadata").touch()  # a query has read the topic
    assert check(settings_in(tmp_path, forgets, monkeypatch)) == OLD


def test_a_topic_that_nobody_has_read_yet_is_missed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandFailed, match="there is no topic payments: `penstock topic list`"):
        check(settings_in(tmp_path, {1, 2}, monkeypatch))


class State:
    """Spark's state of a bucket of keys that has none yet."""

    exists = hasTimedOut = False

    def getCurrentWatermarkMs(self) -> int:
        return 0

    def remove(self) -> None:
        pass


def alert_of(topic: str, topic_id: TopicId) -> dict[str, Any]:
    """What comes of two payments with the same card."""
    rows = [["many", "card", None, 0.0, "", 0, offset, 1_000.0, True, b"", b"", None, 7] for offset in (0, 1)]
    (frame,) = evaluator(RULES, topic, topic_id)((7,), [pd.DataFrame(rows)], State())  # type: ignore[arg-type]
    (found,) = frame.to_dict("records")
    assert json.loads(found["value"])["id"] == found["id"]
    return dict(found)


def test_alerts_of_another_topic_or_of_one_made_anew_have_other_ids() -> None:
    first = alert_of("payments", OLD)["id"]
    assert alert_of("payments", OLD)["id"] == first
    assert len({first, alert_of("payments", NEW)["id"], alert_of("refunds", OLD)["id"]}) == 3
