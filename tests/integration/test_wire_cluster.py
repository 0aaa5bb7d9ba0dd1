"""The cluster client against real brokers: Penstock in a process of its own, and Apache Kafka where it is.

Rule: a test that was not run says so and why.
"""

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trustme
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.config.listeners import Address
from penstock.host.tls import ClientTls
from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.protocol.compression import Codec
from penstock.protocol.records import Record, build_batch, iterate_records
from penstock.testing import Broker, broker
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import (
    EARLIEST,
    LATEST,
    ClusterClient,
    FetchedBatches,
    OffsetOutOfRange,
    WireError,
)
from penstock.wire.errors import RecordsTooLarge, TopicReplaced, TopicUnknown, Unreachable
from penstock.wire.range_fetcher import extent_of
from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.free_ports import free_ports
from tests.integration.messages import QUIET
from tools.differential.kafka import VERSIONS, missing_programs, running_kafka

HOST = "127.0.0.1"
SECONDS_MAX = 20.0
FIRST_MS = 1_700_000_000_000
CACHE = Path(".cache")
KEPT = {"retention.ms": "-1"}
"""The records of these tests are years old."""


def address_of(bootstrap: str) -> Address:
    host, _, port = bootstrap.rpartition(":")
    return Address(host, int(port))


def client_of(
    bootstrap: str, *, timeout_s: float = SECONDS_MAX, tls: ClientTls | None = None
) -> ClusterClient:
    return ClusterClient([address_of(bootstrap)], client_id="test", timeout_s=timeout_s, tls=tls)


@pytest.fixture
def client(bootstrap: str) -> Iterator[ClusterClient]:
    with client_of(bootstrap) as made:
        yield made


def batch_of(first: int, count: int, codec: Codec = Codec.NONE) -> bytes:
    """Records whose values are numbers from `first` on, a second apart."""
    records = [
        Record(Offset(0), FIRST_MS + 1000 * n, None, b"%080d" % n) for n in range(first, first + count)
    ]
    return build_batch(records, codec=codec)


def records_of(fetched: Iterator[FetchedBatches]) -> list[Record]:
    return [record for each in fetched for record in _records(each.data)]


def _records(data: memoryview) -> Iterator[Record]:
    while data:
        first = bytes(data[:12])
        size = 12 + int.from_bytes(first[8:], "big")
        yield from iterate_records(data[:size], limit_bytes=DECOMPRESSED_BYTES_MAX)
        data = data[size:]


def read(client: ClusterClient, partition: TopicPartition, start: int, end: int) -> list[int]:
    """The numbers between these offsets."""
    found = records_of(client.fetch(partition, Offset(start), Offset(end), read_committed=False))
    return [int(record.value or b"") for record in found if start <= record.offset < end]


def end_of(client: ClusterClient, partition: TopicPartition) -> int:
    return client.offsets({partition: LATEST}, read_committed=False)[partition][0]


# With any broker that speaks the protocol


def tell_the_whole_story(client: ClusterClient, topic: str) -> None:
    """Everything the client can do, once."""
    partitions = [TopicPartition(topic, number) for number in range(3)]
    assert client.topics([topic]) == {}
    client.create_topic(topic, 3, KEPT)
    client.create_topic(topic, 3, {})  # there already
    facts = client.topics([topic, "never-made"])
    assert list(facts) == [topic]
    assert facts[topic].partitions == 3
    assert client.topics()[topic] == facts[topic]

    batches = {
        partition: [batch_of(100 * n, 100, codec) for n, codec in enumerate(Codec)]
        for partition in partitions
    }
    assert client.produce_many(batches) == dict.fromkeys(partitions, 0)
    assert client.produce(partitions[0], [batch_of(500, 10)]) == 500

    assert read(client, partitions[0], 0, 510) == list(range(510))
    assert read(client, partitions[1], 250, 260) == list(range(250, 260))
    small_pieces = client.fetch(
        partitions[2], Offset(0), Offset(500), read_committed=True, bytes_at_once=65_536
    )
    assert [int(record.value or b"") for record in records_of(small_pieces)] == list(range(500))

    wanted = {partitions[0]: EARLIEST, partitions[1]: LATEST, partitions[2]: FIRST_MS + 300_500}
    assert client.offsets(wanted, read_committed=True) == {
        partitions[0]: (0, -1),
        partitions[1]: (500, -1),
        partitions[2]: (301, FIRST_MS + 301_000),
    }
    assert client.offsets({partitions[0]: FIRST_MS * 2}, read_committed=False) == {partitions[0]: (-1, -1)}

    ends = client.log_ends(partitions, read_committed=True)
    assert [ends[each].offset for each in partitions] == [510, 500, 500]
    epochs = {each: ends[each].leader_epoch for each in partitions}
    assert min(epochs.values()) >= 0
    assert client.epoch_ends(epochs) == dict(zip(partitions, (510, 500, 500), strict=True))
    # No leader has had this epoch yet.
    assert client.epoch_ends({partitions[0]: epochs[partitions[0]] + 1}) == {partitions[0]: -1}

    group = f"{topic}-readers"
    assert client.committed(group, partitions[:1]) == {partitions[0]: None}
    client.commit(group, {partitions[0]: Offset(7), partitions[1]: Offset(8)}, note="batch 3")
    client.commit(group, {partitions[0]: Offset(9)})
    assert client.committed(group, partitions) == dict(zip(partitions, (9, 8, None), strict=True))

    with pytest.raises(OffsetOutOfRange) as gone:
        read(client, partitions[0], 600, 700)
    assert (gone.value.requested, gone.value.log_start, gone.value.log_end) == (600, 0, 510)
    with pytest.raises(RecordsTooLarge, match="MESSAGE_TOO_LARGE"):
        client.produce(partitions[0], [build_batch([Record(Offset(0), 1, None, bytes(3_000_000))])])


def test_everything_works_with_penstock(client: ClusterClient) -> None:
    tell_the_whole_story(client, "cluster-story")


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    jars = next(
        (CACHE / f"kafka-{version}" for version in VERSIONS if (CACHE / f"kafka-{version}").is_dir()), None
    )
    if jars is None or "java" in missing_programs():
        pytest.skip(
            "Apache Kafka is not here: the cluster client was NOT tried against it; "
            "`python -m tools.differential` fetches its jars into .cache"
        )
    with running_kafka(jars) as running:
        yield running.address


def test_everything_works_with_apache_kafka(kafka: str) -> None:
    with client_of(kafka) as client:
        tell_the_whole_story(client, "cluster-story")


def test_aborted_transactions_are_named_and_held_back_by_apache_kafka(kafka: str) -> None:
    with client_of(kafka, timeout_s=3) as client:
        client.create_topic("payments", 1)
        partition = TopicPartition("payments", 0)
        producer = Producer({"bootstrap.servers": kafka, "transactional.id": "t", **QUIET})
        producer.init_transactions(SECONDS_MAX)
        for outcome in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce("payments", outcome.__name__)
            producer.flush(SECONDS_MAX)
            outcome(SECONDS_MAX)
        producer.begin_transaction()
        producer.produce("payments", "open")
        producer.flush(SECONDS_MAX)

        (stable, _), end = client.offsets({partition: LATEST}, read_committed=True)[partition], 7
        assert (stable, end_of(client, partition)) == (6, end)
        committed = list(client.fetch(partition, Offset(0), stable, read_committed=True))
        assert [offset for each in committed for _, offset in each.aborted] == [2]
        assert {each.last_stable_offset for each in committed} == {6}
        anything = list(client.fetch(partition, Offset(0), Offset(end), read_committed=False))
        assert not any(each.aborted for each in anything)
        with pytest.raises(WireError, match=r"what may be read ends at offset 6"):
            list(client.fetch(partition, Offset(0), Offset(end), read_committed=True))
        producer.abort_transaction(SECONDS_MAX)


# Trouble


def test_other_clients_read_what_was_written(client: ClusterClient, bootstrap: str) -> None:
    client.create_topic("cluster-read-by-others", 1, KEPT)
    client.produce(TopicPartition("cluster-read-by-others", 0), [batch_of(0, 50), batch_of(50, 50)])

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **QUIET})
    consumer.assign([ConfluentPartition("cluster-read-by-others", 0, 0)])
    found = consumer.consume(100, SECONDS_MAX)
    consumer.close()

    assert [int(message.value() or b"") for message in found] == list(range(100))


@pytest.fixture
def steady_broker(data_dir: Path) -> Iterator[BrokerProcess]:
    """One that has its old address again when it is started again."""
    (port,) = free_ports(1)
    with serving(data_dir, addresses=("--kafka", f"{HOST}:{port}", "--http", f"{HOST}:0")) as process:
        yield process


def crash(process: BrokerProcess) -> None:
    process.kill()
    process.start()


def test_reading_and_writing_go_on_when_the_broker_was_killed(steady_broker: BrokerProcess) -> None:
    partition = TopicPartition("orders", 0)
    with client_of(steady_broker.bootstrap) as client:
        client.create_topic("orders", 1, KEPT)
        client.produce(partition, [batch_of(100 * number, 100) for number in range(40)])
        reading = client.fetch(partition, Offset(0), Offset(4000), read_committed=False, bytes_at_once=65_536)
        found = _numbers([next(reading)])
        assert len(found) < 4000, "there is more to read"

        crash(steady_broker)

        found += _numbers(list(reading))
        assert found == list(range(4000))
        crash(steady_broker)
        assert client.produce(partition, [batch_of(4000, 10)]) == 4000
        client.commit("readers", {partition: Offset(5)})
        crash(steady_broker)
        assert client.committed("readers", [partition]) == {partition: 5}


def _numbers(fetched: Sequence[FetchedBatches]) -> list[int]:
    return [int(record.value or b"") for each in fetched for record in _records(each.data)]


def test_a_broker_that_stays_away_is_told_in_time(own_broker: BrokerProcess) -> None:
    with client_of(own_broker.bootstrap, timeout_s=1) as client:
        client.topics()
        own_broker.kill()

        with pytest.raises(Unreachable, match=r"asking for topics failed: .*nothing listens there \(tried"):
            client.topics()


def test_a_topic_that_does_not_exist_is_told(bootstrap: str) -> None:
    with client_of(bootstrap, timeout_s=0.5) as client, pytest.raises(TopicUnknown, match="never-made-0"):
        end_of(client, TopicPartition("never-made", 0))


def test_a_deleted_topic_is_not_read_on_in_its_successor(bootstrap: str) -> None:
    with client_of(bootstrap, timeout_s=5) as client:
        check_that_it_is_not_read_on(client, bootstrap)


def check_that_it_is_not_read_on(client: ClusterClient, bootstrap: str) -> None:
    partition = TopicPartition("cluster-replaced", 0)
    batches = [batch_of(100 * number, 100) for number in range(40)]
    client.create_topic("cluster-replaced", 1, KEPT)
    client.produce(partition, batches)
    reading = client.fetch(partition, Offset(0), Offset(4000), read_committed=False, bytes_at_once=65_536)
    next(reading)

    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.delete_topics(["cluster-replaced"])["cluster-replaced"].result(SECONDS_MAX)
    with client_of(bootstrap) as other:
        other.create_topic("cluster-replaced", 1)
        other.produce(partition, batches)

    with pytest.raises(TopicReplaced, match="cluster-replaced was deleted and made anew"):
        list(reading)


def test_records_that_were_removed_are_told_as_gone(client: ClusterClient, bootstrap: str) -> None:
    partition = TopicPartition("cluster-removed", 0)
    client.create_topic("cluster-removed", 1, KEPT)
    client.produce(partition, [batch_of(0, 100)])
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    (removal,) = admin.delete_records([ConfluentPartition(*partition, 60)]).values()
    removal.result(SECONDS_MAX)

    with pytest.raises(
        OffsetOutOfRange, match=r"offset 10 .* retention removed it; there are offsets 60 to 100"
    ):
        read(client, partition, 10, 100)
    assert read(client, partition, 60, 100) == list(range(60, 100))


def test_an_address_for_http_is_told_at_once(shared_broker: BrokerProcess) -> None:
    with client_of(shared_broker.http) as client, pytest.raises(WireError, match="Kafka"):
        client.topics()


# TLS


class Secrets:
    """Certificates as files, and a broker that asks for them."""

    PASSWORD = "open sesame"

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.ca_text = authority.cert_pem.bytes().decode()
        self.broker = str(folder / "broker.pem")
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(self.broker)
        self.misnamed = str(folder / "misnamed.pem")
        authority.issue_cert("elsewhere.example").private_key_and_cert_chain_pem.write_to_path(self.misnamed)
        client = authority.issue_cert("client.example")
        self.certificate, self.key = str(folder / "client.pem"), str(folder / "client.key")
        client.cert_chain_pems[0].write_to_path(self.certificate)
        self.identity_text = client.private_key_and_cert_chain_pem.bytes().decode()
        key = load_pem_private_key(client.private_key_pem.bytes(), None)
        encryption = BestAvailableEncryption(self.PASSWORD.encode())
        Path(self.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        self.stranger = str(folder / "stranger.pem")
        trustme.CA().cert_pem.write_to_path(self.stranger)

    def settings(self, keystore: str, client_auth: str) -> dict[str, str]:
        return {
            "listeners": f"TLS://{HOST}:0",
            "ssl.keystore.location": keystore,
            "ssl.truststore.location": self.ca,
            "ssl.client.auth": client_auth,
        }

    def tls(self, **more: object) -> ClientTls:
        known = ClientTls(ca=self.ca, certificate=self.certificate, key=self.key, key_password=self.PASSWORD)
        return known._replace(**more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def mutual_broker(secrets: Secrets) -> Iterator[Broker]:
    with broker(**secrets.settings(secrets.broker, "required")) as running:
        yield running


def test_a_client_with_certificate_key_and_password_is_served(
    mutual_broker: Broker, secrets: Secrets
) -> None:
    with client_of(mutual_broker.bootstrap, tls=secrets.tls()) as client:
        client.create_topic("orders", 1, KEPT)
        client.produce(TopicPartition("orders", 0), [batch_of(0, 5000)] * 20)
        end = end_of(client, TopicPartition("orders", 0))
        assert read(client, TopicPartition("orders", 0), 0, end) == [*range(5000)] * 20


def test_certificates_may_be_given_as_text(mutual_broker: Broker, secrets: Secrets) -> None:
    tls = ClientTls(ca_text=secrets.ca_text, identity_text=secrets.identity_text)
    with client_of(mutual_broker.bootstrap, tls=tls) as client:
        client.topics()
    assert "PRIVATE" not in repr(tls)
    assert secrets.PASSWORD not in repr(secrets.tls())


def test_a_broker_nobody_vouches_for_is_told_at_once(mutual_broker: Broker, secrets: Secrets) -> None:
    tls = secrets.tls(ca=secrets.stranger)
    with (
        client_of(mutual_broker.bootstrap, tls=tls) as client,
        pytest.raises(Unreachable, match="its certificate is not trusted"),
    ):
        client.topics()


def test_a_missing_client_certificate_is_told(mutual_broker: Broker, secrets: Secrets) -> None:
    tls = ClientTls(ca=secrets.ca)
    with (
        client_of(mutual_broker.bootstrap, tls=tls, timeout_s=1) as client,
        pytest.raises(Unreachable, match="certificate"),
    ):
        client.topics()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"key_password": "wrong"}, "its password is another"),
        ({"certificate": "/nowhere.pem"}, "there is no file /nowhere.pem"),
        ({"ca": "/nowhere.pem"}, "there is no file /nowhere.pem"),
        ({"certificate": None}, "has no certificate"),
        ({"ca_text": "nonsense", "ca": None}, "is not PEM"),
        ({"identity_text": "nonsense"}, "the text of the certificate is not a PEM file"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_file_that_is_no_good_is_named(
    mutual_broker: Broker, secrets: Secrets, change: dict[str, str | None], problem: str
) -> None:
    with (
        client_of(mutual_broker.bootstrap, tls=secrets.tls(**change)) as client,
        pytest.raises(WireError, match=problem),
    ):
        client.topics()


def test_the_name_in_the_certificate_is_checked_unless_switched_off(secrets: Secrets) -> None:
    with broker(**secrets.settings(secrets.misnamed, "none")) as misnamed:
        with (
            client_of(misnamed.bootstrap, tls=secrets.tls()) as client,
            pytest.raises(Unreachable, match=r"not trusted .*mismatch"),
        ):
            client.topics()
        with client_of(misnamed.bootstrap, tls=secrets.tls(check_hostname=False)) as client:
            assert client.topics() == {}


# The pool that Spark's workers use

_FORKING = """
    import os, sys
    from penstock.config.listeners import Address
    from penstock.spark.pool import ClientSettings, borrowed_client

    settings = ClientSettings((Address("127.0.0.1", int(sys.argv[1])),), timeout_s=10)
    with borrowed_client(settings) as before:
        before.topics()
    with borrowed_client(settings) as again:
        assert again is before, "lent twice"
    child = os.fork()
    with borrowed_client(settings) as client:
        assert (client is before) == (child != 0), "a child makes its own"
        for _ in range(200):
            assert client.topics(["none"]) == {}
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with borrowed_client(settings) as client:
            client.topics()
        print("fine")
"""


def test_a_forked_worker_makes_its_own_connections(shared_broker: BrokerProcess) -> None:
    port = address_of(shared_broker.bootstrap).port
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(_FORKING), str(port)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_whatever_is_fetched_is_whole(client: ClusterClient) -> None:
    partition = TopicPartition("cluster-whole", 0)
    client.create_topic("cluster-whole", 1, KEPT)
    client.produce(partition, [batch_of(1000 * number, 1000) for number in range(50)])

    for fetched in client.fetch(
        partition, Offset(0), Offset(50_000), read_committed=False, bytes_at_once=99_999
    ):
        extent = extent_of(fetched.data, Offset(50_000))
        assert extent is not None
        assert extent.bytes == len(fetched.data)
