"""The comparison behind `make differential`: what counts as a difference, and which ones are meant."""

import re
from pathlib import Path

import pytest

from penstock.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from penstock.protocol.messages.produce import PartitionProduceResponse
from penstock.types import TopicId
from tools.differential.batches import batch, with_bad_crc
from tools.differential.compare import ABSENT, Difference, Plain, differences, labelled
from tools.differential.gaps import GAPS, Gap, covering
from tools.differential.replies import NO_TOPIC_ID, UNKNOWN_TOPIC_ID, plain
from tools.differential.report import difference_lines, gaps_without_effect, table
from tools.differential.run import compare_case
from tools.differential.scenarios import ALL

ROOT = Path(__file__).parents[3]


def found(kafka: Plain, penstock: Plain) -> list[Difference]:
    return list(differences(labelled(kafka), labelled(penstock)))


def test_equal_answers_have_no_differences() -> None:
    answer: Plain = {"error_code": 0, "topics": [{"name": "a", "partitions": [{"index": 0}]}]}
    assert found(answer, answer) == []


def test_a_difference_is_named_by_fields_and_labels() -> None:
    kafka: Plain = {"topics": [{"name": "a", "partitions": [{"partition_index": 3, "error_code": 0}]}]}
    penstock: Plain = {"topics": [{"name": "a", "partitions": [{"partition_index": 3, "error_code": 6}]}]}
    assert found(kafka, penstock) == [Difference("topics.a.partitions.3.error_code", 0, 6)]


def test_the_order_of_topics_does_not_matter() -> None:
    kafka: Plain = {"topics": [{"name": "a", "x": 1}, {"name": "b", "x": 2}]}
    penstock: Plain = {"topics": [{"name": "b", "x": 2}, {"name": "a", "x": 1}]}
    assert found(kafka, penstock) == []


def test_the_order_of_synonyms_matters() -> None:
    kafka: Plain = {"synonyms": [{"name": "a"}, {"name": "b"}]}
    penstock: Plain = {"synonyms": [{"name": "b"}, {"name": "a"}]}
    assert [difference.path for difference in found(kafka, penstock)] == [
        "synonyms.0.name",
        "synonyms.1.name",
    ]


def test_a_missing_and_an_additional_element_are_both_found() -> None:
    kafka: Plain = {"topics": [{"name": "a"}]}
    penstock: Plain = {"topics": [{"name": "b"}]}
    assert found(kafka, penstock) == [
        Difference("topics.a", {"name": "a"}, ABSENT),
        Difference("topics.b", ABSENT, {"name": "b"}),
    ]


def test_elements_that_share_a_label_are_told_apart_by_their_number() -> None:
    kafka: Plain = {"coordinators": [{"key": "a"}, {"key": "a"}]}
    penstock: Plain = {"coordinators": [{"key": "a"}]}
    assert found(kafka, penstock) == [Difference("coordinators.a#2", {"key": "a"}, ABSENT)]


def test_resources_are_labelled_by_type_and_name() -> None:
    kafka: Plain = {"results": [{"resource_type": 2, "resource_name": "x", "error_code": 0}]}
    penstock: Plain = {"results": [{"resource_type": 2, "resource_name": "x", "error_code": 3}]}
    assert found(kafka, penstock) == [Difference("results.2:x.error_code", 0, 3)]


@pytest.mark.parametrize(("kafka", "penstock"), [(None, []), (None, ""), (0, False), ("", "x"), ([1], [2])])
def test_values_that_a_client_could_tell_apart_differ(kafka: Plain, penstock: Plain) -> None:
    assert len(found({"field": kafka}, {"field": penstock})) == 1


def test_a_closed_connection_differs_from_an_answer() -> None:
    assert found("(connection closed)", {"error_code": 0}) == [
        Difference("", "(connection closed)", {"error_code": 0})
    ]


def test_only_fields_of_the_version_are_compared() -> None:
    assert "log_start_offset" not in plain(PartitionProduceResponse(), 4, {})
    assert "log_start_offset" in plain(PartitionProduceResponse(), 5, {})


def test_ports_ids_and_texts_are_taken_out() -> None:
    known = TopicId(b"k" * 16)
    message = MetadataResponse(
        brokers=[MetadataResponseBroker(1, "127.0.0.1", 9092)],
        cluster_id="some-cluster",
        topics=[
            MetadataResponseTopic(name="known", topic_id=known),
            MetadataResponseTopic(name="zero", topic_id=TopicId(NO_TOPIC_ID)),
            MetadataResponseTopic(name="asked", topic_id=TopicId(UNKNOWN_TOPIC_ID)),
        ],
    )
    answer = labelled(plain(message, 12, {known: "known"}))
    assert isinstance(answer, dict)
    assert answer["brokers"] == {"1": {"node_id": 1, "host": "127.0.0.1", "port": "<port>", "rack": None}}
    assert answer["cluster_id"] == "<cluster>"
    topics = answer["topics"]
    assert isinstance(topics, dict)
    ids = [topic["topic_id"] for topic in topics.values() if isinstance(topic, dict)]
    assert ids == ["<unknown id>", "<id of known>", "<no id>"]


@pytest.mark.parametrize(("text", "kept"), [(None, None), ("", ""), ("anything", "<text>")])
def test_of_texts_for_people_only_the_presence_is_kept(text: str | None, kept: str | None) -> None:
    assert plain(PartitionProduceResponse(error_message=text), 8, {})["error_message"] == kept


def fetched(records: bytes) -> Plain:
    partition = PartitionData(records=records)
    return labelled(
        plain(FetchResponse(responses=[FetchableTopicResponse("t", partitions=[partition])]), 12, {})
    )


def test_records_are_compared_batch_by_batch() -> None:
    (difference,) = differences(fetched(batch(b"a") + batch(b"b")), fetched(batch(b"a") + batch(b"c")))
    assert difference.path == "responses.t.partitions.0.records.1.payload"


def test_an_incomplete_batch_is_a_difference() -> None:
    (difference,) = differences(fetched(batch()), fetched(batch() + batch()[:20]))
    assert difference.penstock == {"bytes_of_an_incomplete_batch": 20}


def test_a_bad_checksum_is_a_difference() -> None:
    (difference,) = differences(fetched(batch()), fetched(with_bad_crc(batch())))
    assert difference.path.endswith("records.0.crc")


def test_a_gap_covers_only_its_case_path_and_values() -> None:
    gap = Gap("G1", "produce/*", "*.error_code", kafka="-1", penstock="2")
    assert gap.covers("produce/x", Difference("a.error_code", -1, 2))
    assert not gap.covers("fetch/x", Difference("a.error_code", -1, 2))
    assert not gap.covers("produce/x", Difference("a.offset", -1, 2))
    assert not gap.covers("produce/x", Difference("a.error_code", -1, 3))
    assert covering((gap,), "fetch/x", Difference("a.error_code", -1, 2)) is None


def test_a_case_is_unexpected_when_one_of_its_differences_is_not_covered() -> None:
    gap = Gap("G1", "*", "a")
    case = compare_case("s/c", {"a": 1, "b": 1}, {"a": 2, "b": 2}, (gap,))
    assert [each for each, _ in case.intended] == [gap]
    assert case.unexpected == (Difference("b", 1, 2),)
    assert difference_lines(case) == ["s/c", "    b", "        kafka     1", "        penstock  2"]


def test_the_table_counts_equal_intended_and_unexpected_cases() -> None:
    gap = Gap("G7", "*", "a")
    cases = [
        compare_case("s/equal", {"a": 1}, {"a": 1}, (gap,)),
        compare_case("s/meant", {"a": 1}, {"a": 2}, (gap,)),
        compare_case("s/not meant", {"b": 1}, {"b": 2}, (gap,)),
    ]
    assert table(cases)[-1].split() == ["total", "3", "1", "1", "1", "G7"]


def test_a_gap_that_explains_nothing_is_reported() -> None:
    used, unused = Gap("G1", "*", "a"), Gap("G2", "*", "b")
    cases = [compare_case("s/c", {"a": 1}, {"a": 2}, (used, unused))]
    assert gaps_without_effect(cases, (used, unused)) == [unused]


def test_every_gap_has_a_row_in_the_documentation_and_every_row_a_gap() -> None:
    page = (ROOT / "docs" / "protocol-gaps.md").read_text()
    rows = re.findall(r"^\| (G\d+) \|", page, re.MULTILINE)
    assert rows == sorted(set(rows), key=lambda name: int(name[1:])), "rows are unique and in order"
    assert set(rows) == {gap.id for gap in GAPS}


def test_cases_have_names_of_their_own() -> None:
    names = [f"{scenario.name}/{step.name}" for scenario in ALL for step in scenario.steps]
    assert sorted(names) == sorted(set(names))


def test_scenarios_do_not_share_topics() -> None:
    topics = [topic.name for scenario in ALL for topic in scenario.topics]
    assert sorted(topics) == sorted(set(topics))
