"""Spark reads and writes over TLS and shows a certificate, which a broker in a process of its own asks for.

Certificates are given in each of the ways that the options have: files, with the key apart and encrypted, and
texts. Whatever the way, no copy of a private key may be left behind.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.cli.broker_connector import connector_of
from penstock.cli.pipeline.app import kafka_options
from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.integration.test_tls import Certificates
from tests.spark.archive_topics import Connected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "correct-horse"
GROUP = "over-tls"
ROWS = 40


class Client:
    """What a client is given."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self.folder = folder
        self.authority = certificates.authority_path
        issued = certificates.authority.issue_cert("spark.example.com")
        self.key = issued.private_key_pem.bytes().decode()
        self.chain = "".join(each.bytes().decode() for each in issued.cert_chain_pems)
        self.together = self._file("together.pem", self.key + self.chain)
        self.chain_path = self._file("chain.pem", self.chain)
        self.key_path = self._file("key.pem", self.key)
        self.encrypted_path = self._file("encrypted.pem", encrypted(self.key))

    def _file(self, name: str, content: str) -> str:
        path = self.folder / name
        path.write_text(content)
        return str(path)

    def java_names(self) -> dict[str, str]:
        return {"truststore.location": self.authority, "keystore.location": self.together}

    def key_apart(self) -> dict[str, str]:
        return {
            "ca.location": self.authority,
            "certificate.location": self.chain_path,
            "key.location": self.encrypted_path,
            "key.password": PASSWORD,
        }

    def texts(self) -> dict[str, str]:
        return {
            "truststore.certificates": Path(self.authority).read_text(),
            "keystore.certificate.chain": self.chain,
            "keystore.key": self.key,
        }


def encrypted(key: str) -> str:
    made = load_pem_private_key(key.encode(), None)
    how = BestAvailableEncryption(PASSWORD.encode())
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how).decode()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Client:
    return Client(tmp_path_factory.mktemp("client"), certificates)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[BrokerProcess]:
    """Its first listener takes only clients with a certificate; its second is for looking."""
    settings = certificates.settings(
        ssl_client_auth="required", ssl_truststore_location=certificates.authority_path
    )
    folder = tmp_path_factory.mktemp("secure")
    with serving(folder / "data", settings=settings, addresses=("--http", "127.0.0.1:0")) as running:
        yield running


def options(running: BrokerProcess, tls: dict[str, str]) -> dict[str, str]:
    common = {"kafka.bootstrap.servers": running.bootstrap, "kafka.security.protocol": "SSL"}
    return common | {f"kafka.ssl.{name}": value for name, value in tls.items()}


def keys_left_behind() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("penstock-*.pem")) | set(
        Path(tempfile.gettempdir()).glob("penstock-tls-*")
    )


@pytest.mark.parametrize("way", [Client.java_names, Client.key_apart, Client.texts])
def test_spark_writes_and_reads_over_tls_with_a_certificate(
    spark: "SparkSession",
    secure: BrokerProcess,
    client: Client,
    topic: str,
    checkpoint: str,
    way: Callable[[Client], dict[str, str]],
) -> None:
    before = keys_left_behind()
    with Connected(secure.addresses[1]) as plain:
        plain.create_topic(topic, 2, {})
    access = options(secure, way(client))
    rows = spark.range(ROWS).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("penstock").mode("append").options(**access, topic=topic).save()

    reading = {**access, "subscribe": topic, "startingOffsets": "earliest"}
    found = spark.read.format("penstock").options(**reading).load().selectExpr("cast(value as string)")
    assert sorted(int(row.value) for row in found.collect()) == list(range(ROWS))

    stream = spark.readStream.format("penstock").options(**reading).option("kafka.group.id", GROUP).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == ROWS
    # A client that is connecting just now has a file for a moment.
    eventually(lambda: keys_left_behind() <= before)


def test_a_query_without_a_certificate_is_told_what_is_wrong(
    spark: "SparkSession", secure: BrokerProcess, client: Client, topic: str
) -> None:
    reading = {"subscribe": topic, "kafka.request.timeout.ms": "2000"}
    nothing_to_show = options(secure, {"ca.location": client.authority}) | reading
    with pytest.raises(Exception, match="certificate"):
        spark.read.format("penstock").options(**nothing_to_show).load().collect()


def test_a_broker_that_nobody_trusts_is_not_talked_to(
    spark: "SparkSession", secure: BrokerProcess, client: Client, topic: str, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    reading = {"subscribe": topic, "kafka.request.timeout.ms": "2000"}
    trusting_another = options(secure, client.java_names() | {"truststore.location": str(stranger)})
    with pytest.raises(Exception, match="certificate"):
        spark.read.format("penstock").options(**trusting_another, **reading).load().collect()


def test_secrets_are_not_shown_in_plans(
    spark: "SparkSession", secure: BrokerProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    access = options(secure, client.texts()) | {"kafka.ssl.key.password": PASSWORD, "subscribe": "orders"}
    frame = spark.readStream.format("penstock").options(**access).load()
    frame.explain(extended=True)
    shown = capsys.readouterr().out
    assert "key" in shown
    assert PASSWORD not in shown
    assert "PRIVATE KEY" not in shown


def test_the_options_of_commands_become_those_of_spark(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have other working directories."""
    monkeypatch.chdir(client.folder)
    broker = connector_of(
        bootstrap="one:9092",
        timeout=5,
        tls_ca=Path(client.authority),
        tls_cert=Path("chain.pem"),
        tls_key=Path("key.pem"),
    )
    access = kafka_options(broker)
    assert access["kafka.security.protocol"] == "SSL"
    assert access["kafka.ssl.ca.location"] == client.authority
    assert access["kafka.ssl.certificate.location"] == client.chain_path
    assert access["kafka.ssl.key.location"] == client.key_path
