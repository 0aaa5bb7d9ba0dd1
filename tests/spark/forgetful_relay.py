"""A relay in front of a broker that is behind for some seconds, when it is told to by a signal.

    python -m tests.spark.forgetful_relay OWN_PORT BROKER_PORT SECONDS

After USR1 topics in answers to Metadata are unknown, as those of a broker that was just started and has not
heard of them yet. After USR2 they have other ids, as those of a broker that is cut off from the metadata
store and knows topics that were deleted and made anew. The seconds begin with the first such answer, for
which a line is printed: so there is always one.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import unpack, unpack_from

from penstock.errors import ErrorCode
from penstock.protocol.frames import decode_response, encode_response
from penstock.protocol.messages.metadata import METADATA, MetadataResponse
from penstock.types import NO_TOPIC_ID, TopicId

FORGETS_S = 1.0
PREFIX_BYTES = 4


Change = Callable[[MetadataResponse], None]


def forget_topics(message: MetadataResponse) -> None:
    for topic in message.topics:
        topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic.topic_id = NO_TOPIC_ID
        topic.partitions = []


def change_ids(message: MetadataResponse) -> None:
    for topic in message.topics:
        topic.topic_id = TopicId(topic.topic_id[::-1])


class Memory:
    """What the broker remembers of topics."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked: Change | None = None
        self._change: Change = forget_topics
        self._until = 0.0

    def ask(self, change: Change) -> None:
        self._asked = change

    def change(self) -> Change | None:
        """What is to be done to an answer now, if anything is."""
        if self._asked is not None:
            self._change, self._asked = self._asked, None
            self._until = time.monotonic() + self._seconds
            print("changed", flush=True)
        return self._change if time.monotonic() < self._until else None


async def frame(source: asyncio.StreamReader) -> bytes:
    size = await source.readexactly(PREFIX_BYTES)
    return size + await source.readexactly(unpack(">i", size)[0])


Requests = deque[tuple[int, int]]
"""API key and version of each request that has no answer yet."""


async def requests(source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: Requests) -> None:
    while True:
        request = await frame(source)
        asked.append(unpack_from(">hh", request, PREFIX_BYTES))
        sink.write(request)
        await sink.drain()


async def answers(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: Requests, memory: Memory
) -> None:
    while True:
        answer = await frame(source)
        key, version = asked.popleft()
        if key == METADATA.key and (change := memory.change()) is not None:
            answer = changed(answer, version, change)
        sink.write(answer)
        await sink.drain()


def changed(answer: bytes, version: int, change: Change) -> bytes:
    correlation_id, message = decode_response(METADATA, version, memoryview(answer)[PREFIX_BYTES:])
    change(message)
    return b"".join(encode_response(METADATA, version, correlation_id, message))


async def relayed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, memory: Memory
) -> None:
    source, sink = await asyncio.open_connection("127.0.0.1", port)
    asked: Requests = deque()
    ways = [
        asyncio.ensure_future(each)
        for each in (requests(reader, sink, asked), answers(source, writer, asked, memory))
    ]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for each in ways:
        each.cancel()
    await asyncio.gather(*ways, return_exceptions=True)
    sink.close()
    writer.close()


async def serve(own: int, port: int, seconds: float) -> None:
    memory = Memory(seconds)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, memory.ask, forget_topics)
    loop.add_signal_handler(signal.SIGUSR2, memory.ask, change_ids)
    server = await asyncio.start_server(
        lambda reader, writer: relayed(reader, writer, port, memory), "127.0.0.1", own
    )
    print("ready", flush=True)
    await server.serve_forever()


class ForgetfulRelay:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def forget(self) -> None:
        """Let topics be unknown from the next answer on."""
        os.kill(self._process.pid, signal.SIGUSR1)

    def change_ids(self) -> None:
        """Let topics have other ids from the next answer on."""
        os.kill(self._process.pid, signal.SIGUSR2)

    def wait_for_changed_reply(self) -> None:
        """Returns when a client has got such an answer."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"changed\n"


@contextmanager
def forgetful_relay(own: int, port: int, *, seconds: float = FORGETS_S) -> Iterator[ForgetfulRelay]:
    command = [sys.executable, "-m", __name__, str(own), str(port), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield ForgetfulRelay(process)
        finally:
            process.kill()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
