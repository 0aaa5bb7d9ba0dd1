"""Specs for tests, and what there is to look at afterwards."""

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, NamedTuple

from penstock.config.listeners import Address
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.pipelines.etl.etl import EtlReport, run_etl
from penstock.spark.pipelines.etl.spec import EtlSpec
from penstock.spark.pipelines.etl.spec_file import read_spec
from penstock.spark.pipelines.etl.stages import EtlSettings
from penstock.spark.records.decode import ColumnSelection, RecordBatchDecoder
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import LATEST, ClusterClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def written(folder: Path, text: str, **values: str) -> EtlSpec:
    """A spec from a file in this folder. Values stand for words in capitals."""
    for name, value in values.items():
        text = text.replace(name, value)
    file = folder / "etl.toml"
    file.write_text(dedent(text))
    return read_spec(file)


def settings_for(spec: EtlSpec, bootstrap: str, *stages: str, rows_per_batch: int = 500_000) -> EtlSettings:
    access = {"kafka.bootstrap.servers": bootstrap}
    chosen = stages or spec.stages
    return EtlSettings(spec, access, chosen, once=True, rows_per_batch=rows_per_batch)


def run_once(spark: "SparkSession", settings: EtlSettings) -> EtlReport:
    return run_etl(spark, settings, StopRequest(), lambda line: None)


class Found(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


def count_of(bootstrap: str, topic: str) -> int:
    """How many records the topic has had."""
    with open_client({"kafka.bootstrap.servers": bootstrap}) as client:
        wanted = dict.fromkeys(fetch_partitions(client, [topic]), LATEST)
        return sum(offset for offset, _ in client.offsets(wanted, read_committed=False).values())


def records_of(bootstrap: str, topic: str) -> list[Found]:
    host, _, port = bootstrap.rpartition(":")
    decoder = RecordBatchDecoder(ColumnSelection(True, True, True, False, False), read_committed=False)
    found: list[Found] = []
    with ClusterClient([Address(host, int(port))], client_id="test") as client:
        count = client.topics([topic])[topic].partitions
        for partition in (TopicPartition(topic, number) for number in range(count)):
            end, _ = client.offsets({partition: LATEST}, read_committed=False)[partition]
            if end == 0:
                continue
            for fetched in client.fetch(partition, Offset(0), end, read_committed=False):
                for piece in decoder.decode(fetched, Offset(0), end):
                    assert piece.keys is not None
                    assert piece.values is not None
                    assert piece.headers is not None
                    columns = (piece.keys.to_pylist(), piece.values.to_pylist(), piece.headers.to_pylist())
                    found += [
                        Found(key, value, {each["key"]: each["value"].decode() for each in headers or ()})
                        for key, value, headers in zip(*columns, strict=True)
                    ]
    return found
