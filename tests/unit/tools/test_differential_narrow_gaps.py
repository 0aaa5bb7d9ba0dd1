"""Gaps that concern many fields name each of them: another difference in the same case is seen."""

import pytest

from tools.differential.compare import ABSENT, Difference
from tools.differential.gaps import GAPS, covering

BROKER = "describe-configs/broker"
SETTINGS = "results.4:1.configs"
HEADERS = "responses.produce-headers"


def is_intended(case: str, path: str, kafka: str | int, penstock: str | int) -> bool:
    return covering(GAPS, case, Difference(path, kafka, penstock)) is not None


def test_the_differences_that_are_meant_are_covered() -> None:
    assert is_intended(BROKER, f"{SETTINGS}.max.connections.value", "2147483647", "10000")
    assert is_intended(BROKER, f"{SETTINGS}.process.roles", "{...}", ABSENT)
    case = "produce-headers/gzip that is not"
    assert is_intended(case, f"{HEADERS}.partition_responses.19.error_code", -1, 0)


@pytest.mark.parametrize(
    ("case", "path", "kafka", "penstock"),
    [
        (BROKER, f"{SETTINGS}.max.connections.value", "2147483647", "9999"),
        (BROKER, f"{SETTINGS}.message.max.bytes.value", "1048588", "1048576"),
        (BROKER, f"{SETTINGS}.message.max.bytes", "{...}", ABSENT),
        (BROKER, f"{SETTINGS}.message.max.bytes.read_only", "False", "True"),
        (BROKER, f"{SETTINGS}.node.id.is_sensitive", "False", "True"),
        ("produce-headers/gzip that is not", f"{HEADERS}.partition_responses.19.error_code", -1, 87),
        ("produce-headers/gzip that is not", f"{HEADERS}.partition_responses.19.log_start_offset", -1, 0),
        ("produce-headers/what is there", f"{HEADERS}.partitions.0.high_watermark", 0, 1),
        ("produce-records/gzip", "responses.produce-records.partition_responses.11.error_code", 0, 87),
        ("produce-times/what is there", "responses.produce-times.partitions.0.records.0.max_timestamp", 1, 2),
    ],
)
def test_another_difference_in_the_same_case_is_not(
    case: str, path: str, kafka: str | int, penstock: str | int
) -> None:
    assert not is_intended(case, path, kafka, penstock)
