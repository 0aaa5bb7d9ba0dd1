"""What kcat prints of a broker, beside what the suite asks of every client."""

import pytest

from tests.integration.clients.kcat_client import KcatClient, kcat
from tests.integration.conftest import CreateTopic

pytestmark = pytest.mark.skipif(KcatClient.absent() is not None, reason=str(KcatClient.absent()))


def test_kcat_shows_headers_offsets_and_partitions(
    bootstrap: str, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(topic, 2)

    kcat(bootstrap, "-P", "-t", topic, "-p", "1", "-H", "origin=shell", stdin="first\nsecond\n")
    found = kcat(bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%p/%o %h %s\n")

    assert found.splitlines() == ["1/0 origin=shell first", "1/1 origin=shell second"]


def test_kcat_lists_the_broker_and_its_topics(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, 3)

    listed = kcat(bootstrap, "-L")

    assert f"broker 1 at {bootstrap} (controller)" in listed
    assert f'topic "{topic}" with 3 partitions' in listed


def test_kcat_asks_for_an_offset_by_time(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, 1)
    kcat(bootstrap, "-P", "-t", topic, stdin="only\n")

    assert f"{topic} [0] offset 0" in kcat(bootstrap, "-Q", "-t", f"{topic}:0:1000")
    assert f"{topic} [0] offset 1" in kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1")
