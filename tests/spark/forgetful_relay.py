"""A relay in front of a broker that forgets all topics for a second, when it is told to: signal USR1.

    python -m tests.spark.forgetful_relay OWN_PORT BROKER_PORT

While it forgets, topics in answers to Metadata are unknown, as those of a broker that was just started and
has not heard of them yet. The second begins with the first such answer, for which a line is printed: so there
is always one.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from struct import unpack, unpack_from

from penstock.errors import ErrorCode
from penstock.protocol.frames import decode_response, encode_response
from penstock.protocol.messages.metadata import METADATA
from penstock.types import NO_TOPIC_ID

FORGETS_S = 1.0
PREFIX_BYTES = 4


class Memory:
    def __init__(self) -> None:
        self.is_asked = False
        self._until = 0.0

    def ask(self) -> None:
        self.is_asked = True

    def is_lost(self) -> bool:
        if self.is_asked:
            self.is_asked = False
            self._until = time.monotonic() + FORGETS_S
            print("forgot", flush=True)
        return time.monotonic() < self._until


async def frame(source: asyncio.StreamReader) -> bytes:
    size = await source.readexactly(PREFIX_BYTES)
    return size + await source.readexactly(unpack(">i", size)[0])


Asked = deque[tuple[int, int]]
"""API key and version of each request that has no answer yet."""


async def requests(source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: Asked) -> None:
    while True:
        request = await frame(source)
        asked.append(unpack_from(">hh", request, PREFIX_BYTES))
        sink.write(request)
        await sink.drain()


async def answers(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: Asked, memory: Memory
) -> None:
    while True:
        answer = await frame(source)
        key, version = asked.popleft()
        if key == METADATA.key and memory.is_lost():
            answer = without_topics(answer, version)
        sink.write(answer)
        await sink.drain()


def without_topics(answer: bytes, version: int) -> bytes:
    correlation_id, message = decode_response(METADATA, version, memoryview(answer)[PREFIX_BYTES:])
    for topic in message.topics:
        topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic.topic_id = NO_TOPIC_ID
        topic.partitions = []
    return b"".join(encode_response(METADATA, version, correlation_id, message))


async def relayed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, memory: Memory
) -> None:
    source, sink = await asyncio.open_connection("127.0.0.1", port)
    asked: Asked = deque()
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


async def serve(own: int, port: int) -> None:
    memory = Memory()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, memory.ask)
    server = await asyncio.start_server(
        lambda reader, writer: relayed(reader, writer, port, memory), "127.0.0.1", own
    )
    print("ready", flush=True)
    await server.serve_forever()


class ForgetfulRelay:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def forget(self) -> None:
        """Returns when a client was told so."""
        os.kill(self._process.pid, signal.SIGUSR1)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"forgot\n"


@contextmanager
def forgetful_relay(own: int, port: int) -> Iterator[ForgetfulRelay]:
    command = [sys.executable, "-m", __name__, str(own), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield ForgetfulRelay(process)
        finally:
            process.kill()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
