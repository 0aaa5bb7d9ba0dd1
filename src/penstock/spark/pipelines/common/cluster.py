"""Requests that pipelines send to the cluster before Spark starts, with errors as readable sentences."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from penstock.errors import CommandFailed
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import write_settings
from penstock.spark.pool import borrowed_client
from penstock.types import TopicId, TopicPartition
from penstock.wire.cluster_client import ClusterClient
from penstock.wire.errors import TopicUnknown, WireError


@contextmanager
def open_client(access: Mapping[str, str]) -> Iterator[ClusterClient]:
    """Open a client from the connection options."""
    try:
        with borrowed_client(client_settings(write_settings(access).access)) as client:
            yield client
    except WireError as problem:
        raise CommandFailed(str(problem)) from problem


def fetch_partitions(
    client: ClusterClient, topics: Sequence[str], *, existed: bool = False
) -> list[TopicPartition]:
    """Return all partitions of the topics; raise CommandFailed for a topic that does not exist.

    A topic that `existed` when the pipeline began is retried for some seconds: a broker that has just started
    may not have its metadata yet, and that must not end a pipeline.
    """
    found = client.topics(topics)
    for topic in [each for each in topics if existed and each not in found]:
        with suppress(TopicUnknown):
            found[topic] = client.topic(topic)
    if missing := [topic for topic in topics if topic not in found]:
        raise CommandFailed(
            f"there is no topic {missing[0]}: `penstock topic list` shows those there are, "
            f"`penstock topic create {missing[0]}` makes it"
        )
    return [TopicPartition(topic, number) for topic in topics for number in range(found[topic].partitions)]


def look_up_topic_ids(
    client: ClusterClient, topics: Sequence[str], noted: Mapping[str, TopicId]
) -> dict[str, TopicId]:
    """Return the ids of the topics that exist. A recreated topic has another id.

    `noted`: the ids that the checkpoint has. One broker may still describe a topic that was deleted.
    """
    return {topic: facts.id for topic, facts in client.topics(topics, noted).items()}
