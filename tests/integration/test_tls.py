"""TLS listeners with certificates made for the test, and clients that check them."""

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Producer

from penstock.broker.broker import BrokerLimits
from penstock.broker.network.server import ServerLimits
from penstock.errors import ConfigError
from penstock.protocol.messages.metadata import METADATA, MetadataRequest
from penstock.testing import Broker, broker
from penstock.testing.in_process import broker_with
from tests.integration.broker_process import eventually
from tests.integration.clients.client import Client
from tests.integration.clients.confluent_client import ConfluentClient
from tests.integration.clients.kafka_python_client import KafkaPythonClient
from tests.integration.messages import QUIET, assert_same, varied_messages
from tests.integration.raw_client import Closed, RawClient, connected

SECONDS_MAX = 20.0
HOST = "127.0.0.1"


class Certificates:
    """A certificate authority and the files that broker and clients are given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = trustme.CA()
        self.authority_path = str(folder / "authority.pem")
        self.authority.cert_pem.write_to_path(self.authority_path)
        self.broker_path = str(folder / "broker.pem")
        self.replace_broker()

    def replace_broker(self) -> None:
        """As certificate tools do it: a new file takes the place of the old."""
        issued = self.authority.issue_cert(HOST, "localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(self.broker_path + ".new")
        os.replace(self.broker_path + ".new", self.broker_path)

    def client_path(self, authority: trustme.CA | None = None) -> str:
        path = str(self._folder / "client.pem")
        issued = (authority or self.authority).issue_cert("worker.example.com")
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def settings(self, **more: str) -> dict[str, str]:
        tls = {
            "listeners": "TLS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "ssl.keystore.location": self.broker_path,
        }
        return tls | {name.replace("_", "."): value for name, value in more.items()}

    def context(self, client_path: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority_path)
        if client_path is not None:
            context.load_cert_chain(client_path)
        return context


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_broker(certificates: Certificates) -> Iterator[Broker]:
    with broker(**certificates.settings()) as running:
        yield running


@pytest.fixture(scope="session")
def mutual_broker(certificates: Certificates) -> Iterator[Broker]:
    """One that asks its clients for certificates."""
    settings = certificates.settings(
        ssl_client_auth="required", ssl_truststore_location=certificates.authority_path
    )
    with broker(**settings) as running:
        yield running


def speak(address: str, context: ssl.SSLContext) -> bytes:
    """Ask something over TLS. Returns the certificate that the broker showed."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), SECONDS_MAX) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        (node,) = RawClient(secure).ask(METADATA, 12, MetadataRequest(topics=None)).brokers
        assert f"{node.host}:{node.port}" == address, "the address of the TLS listener"
        certificate = secure.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


def confluent_over_tls(certificates: Certificates) -> dict[str, Any]:
    return {"security.protocol": "ssl", "ssl.ca.location": certificates.authority_path, **QUIET}


@pytest.mark.parametrize("kind", ["confluent-kafka", "kafka-python"])
def test_clients_work_over_tls(tls_broker: Broker, certificates: Certificates, topic: str, kind: str) -> None:
    client: Client
    if kind == "confluent-kafka":
        client = ConfluentClient(tls_broker.bootstrap, **confluent_over_tls(certificates))
    else:
        over_tls = {"security_protocol": "SSL", "ssl_cafile": certificates.authority_path}
        client = KafkaPythonClient(tls_broker.bootstrap, **over_tls)
    sent = {0: varied_messages(500)}

    client.produce(topic, sent)

    with client.reading(topic, 1) as reader:
        assert_same(reader.read(500), sent)


def test_both_listeners_serve_the_same_topics(
    tls_broker: Broker, certificates: Certificates, topic: str
) -> None:
    secure, plain = tls_broker.address("tls"), tls_broker.address("plaintext")
    sent = {0: varied_messages(10)}

    ConfluentClient(plain).produce(topic, sent)

    with ConfluentClient(secure, **confluent_over_tls(certificates)).reading(topic, 1) as reader:
        assert_same(reader.read(10), sent)


def test_a_client_that_does_not_know_the_authority_refuses_the_broker(tls_broker: Broker) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        speak(tls_broker.bootstrap, ssl.create_default_context())


def test_versions_of_tls_that_are_too_old_are_refused(tls_broker: Broker, certificates: Certificates) -> None:
    old = certificates.context()
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    speak(tls_broker.bootstrap, old)

    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        speak(tls_broker.bootstrap, old)


def test_a_client_with_a_certificate_is_let_in(mutual_broker: Broker, certificates: Certificates) -> None:
    speak(mutual_broker.bootstrap, certificates.context(certificates.client_path()))


def test_a_client_without_a_certificate_is_turned_away(
    mutual_broker: Broker, certificates: Certificates
) -> None:
    with pytest.raises((OSError, Closed)):
        speak(mutual_broker.bootstrap, certificates.context())


def test_a_certificate_of_another_authority_is_turned_away(
    mutual_broker: Broker, certificates: Certificates
) -> None:
    stranger = certificates.client_path(trustme.CA())

    with pytest.raises((OSError, Closed)):
        speak(mutual_broker.bootstrap, certificates.context(stranger))


def test_a_real_client_without_a_certificate_delivers_nothing(
    mutual_broker: Broker, certificates: Certificates, topic: str
) -> None:
    problems: list[Any] = []
    options = {"bootstrap.servers": mutual_broker.bootstrap, "message.timeout.ms": 1_500}
    producer = Producer({**options, **confluent_over_tls(certificates)})
    producer.produce(topic, b"x", on_delivery=lambda error, _: problems.append(error))
    producer.flush(SECONDS_MAX)

    assert len(problems) == 1
    assert problems[0] is not None


def test_plaintext_to_the_tls_port_is_refused_without_harm(
    tls_broker: Broker, certificates: Certificates
) -> None:
    with connected(tls_broker.bootstrap) as client:
        client.send(METADATA, 12, MetadataRequest(topics=None))
        eventually(lambda: client.is_closed_by_broker(0.1) or client.socket.recv(1) == b"")

    speak(tls_broker.bootstrap, certificates.context())


def test_handshakes_that_stall_are_cut_off_and_keep_nobody_else_waiting(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    limits = BrokerLimits(server=ServerLimits(tls_handshake_ms_max=1_000))
    with broker_with(None, certificates.settings(), limits=limits) as running, ExitStack() as stack:
        stalled = [stack.enter_context(connected(running.bootstrap)) for _ in range(50)]
        for client in stalled[::2]:
            client.socket.sendall(b"\x16\x03\x01\x02\x00")

        asked_at = time.monotonic()
        speak(running.bootstrap, certificates.context())

        assert time.monotonic() - asked_at < 1, "it did not wait for those before it"
        assert all(client.is_closed_by_broker() for client in stalled)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_certificate_that_is_replaced_is_used_by_the_next_handshake(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(tmp_path)
    limits = BrokerLimits(tls_reload_check_ms=50)
    with broker_with(None, certificates.settings(), limits=limits) as running:
        before = speak(running.bootstrap, certificates.context())
        certificates.replace_broker()
        eventually(lambda: speak(running.bootstrap, certificates.context()) != before)

        Path(certificates.broker_path).write_text("this is no certificate")
        eventually(lambda: "tls.not_reloaded" in caplog.text)
        speak(running.bootstrap, certificates.context())


def test_a_keystore_that_cannot_be_loaded_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("nothing")
    settings = {"listeners": "TLS://127.0.0.1:0", "ssl.keystore.location": str(tmp_path / "broken.pem")}

    with pytest.raises(ConfigError, match=r"broken\.pem"), broker(**settings):
        pass
