"""Requests of real clients, spoilt in every way, against a running broker.

Two connections: one replays what was captured, changed; the other is honest and must not notice.
The broker may answer, refuse or close. It may not stop, forget, leak, or fail for a reason of its own.
"""

import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.apis import APIS
from penstock.protocol.frames import decode_request, parse_request_header
from tests.fuzz.mutations import CORPUS, captured_frames, framed, hostile_stream
from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.hostile import hostile_socket, peak_memory_mib, unharmed
from tests.integration.raw_client import connected

STREAMS = 1200
FRAMES_PER_STREAM = 6
REPLY_SECONDS_MAX = 0.02
PEAK_MIB_MAX = 512
CORPUS_BYTES_MAX = 200 * 1024


@pytest.fixture(scope="module")
def fuzzed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with serving(tmp_path_factory.mktemp("fuzzed") / "data") as broker:
        with connected(broker.bootstrap) as client:
            for topic in ("c", "k", "a"):  # those that the captured requests name
                client.create_topic(topic)
        yield broker


def attack(bootstrap: str, stream: bytes) -> None:
    """Send it, and listen a little: what is not read would only test the slow reader's limit."""
    with hostile_socket(bootstrap) as attacker, suppress(ConnectionError, TimeoutError):
        attacker.sendall(stream)
        attacker.shutdown(socket.SHUT_WR)
        while select.select([attacker], [], [], REPLY_SECONDS_MAX)[0] and attacker.recv(65_536):
            pass


def test_the_corpus_is_what_real_clients_send_and_small() -> None:
    kinds = set()
    for name, frame in captured_frames():
        header, position = parse_request_header(frame)
        api = APIS[header.api_key]
        assert name.startswith(f"{api.name}-v{header.api_version}-")
        if api.has_version(header.api_version):
            decode_request(api, header.api_version, memoryview(bytearray(frame)), position)
        kinds.add((api.name, header.client_id))
    clients = {client for _, client in kinds}
    assert {"confluent", "aiokafka"} <= clients
    assert {"Produce", "Fetch", "Metadata", "ListOffsets", "CreateTopics"} <= {name for name, _ in kinds}
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < CORPUS_BYTES_MAX


def test_spoilt_requests_of_real_clients_harm_nobody(fuzzed_broker: BrokerProcess, topic: str) -> None:
    frames = [frame for _, frame in captured_frames()]
    done = 0

    with unharmed(fuzzed_broker, topic) as honest:

        @given(
            chosen=st.lists(st.sampled_from(frames), min_size=1, max_size=FRAMES_PER_STREAM),
            seed=st.integers(0, 2**32),
        )
        @settings(
            max_examples=STREAMS,
            deadline=None,
            # A broker has a memory: an example that failed would not fail again, smaller.
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        def attacked(chosen: list[bytes], seed: int) -> None:
            nonlocal done
            attack(fuzzed_broker.bootstrap, hostile_stream(chosen, Random(seed)))
            done += 1
            if done % 10 == 0:
                honest.writes()
            assert fuzzed_broker.is_running

        attacked()
        honest.finds_everything()
    assert done >= STREAMS // 2
    assert peak_memory_mib(fuzzed_broker.pid) < PEAK_MIB_MAX


def test_captured_requests_replayed_unchanged_are_understood(
    fuzzed_broker: BrokerProcess, topic: str
) -> None:
    """Each alone: what is refused is refused for its version, never for its bytes."""
    with unharmed(fuzzed_broker, topic):
        for name, frame in captured_frames():
            header, position = parse_request_header(frame)
            try:
                decode_request(
                    APIS[header.api_key], header.api_version, memoryview(bytearray(frame)), position
                )
            except ProtocolError:
                continue
            with connected(fuzzed_broker.bootstrap) as client:
                client.socket.sendall(framed(frame))
                answered = int.from_bytes(client.socket.recv(8)[4:], "big", signed=True)
                assert answered == header.correlation_id, name
