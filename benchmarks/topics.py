"""Creates and deletes the topics of a benchmark."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ANSWER_S_MAX = 60
LOG_ERRORS = 3
FLUSH_INTERVAL_MS = 1000
"""`flush.ms` for flush policy interval."""

_numbers = count(1)


def create_topic(
    bootstrap: str, partitions: int, flush_policy: str, factor: int = 1, name: str | None = None
) -> str:
    name = name or f"bench-{next(_numbers)}"
    config = {"flush.policy": flush_policy}
    if flush_policy == "interval":
        config["flush.ms"] = str(FLUSH_INTERVAL_MS)
    new = NewTopic(name, num_partitions=partitions, replication_factor=factor, config=config)
    admin = _admin(bootstrap)  # its answers come only while it lives
    admin.create_topics([new])[name].result(ANSWER_S_MAX)
    return name


@contextmanager
def new_topic(bootstrap: str, partitions: int, flush_policy: str, factor: int = 1) -> Iterator[str]:
    """Create a topic, and delete it when the block ends, so that the disk does not fill up."""
    name = create_topic(bootstrap, partitions, flush_policy, factor)
    yield name
    admin = _admin(bootstrap)
    admin.delete_topics([name])[name].result(ANSWER_S_MAX)


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": LOG_ERRORS})
