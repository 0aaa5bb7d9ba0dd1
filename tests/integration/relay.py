"""A process between a client and a port of this host, which can stop, or lose answers.

While `relay_to` is paused nothing passes, and neither side is told. `losing_answers` passes produce requests
on, and instead of the first answers to them it closes the connection.

Rule: what was started here is ended here, by its pid, however the test ends.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tests.integration.free_ports import free_ports

RELAY = """
import asyncio, sys

async def pump(source, sink):
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()

async def relay(reader, writer):
    try:
        there = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

async def main():
    server = await asyncio.start_server(relay, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


LOSING = """
import asyncio, struct, sys

PRODUCE = 0
left = int(sys.argv[3])

async def frame(source):
    size = await source.readexactly(4)
    return size + await source.readexactly(struct.unpack(">i", size)[0])

async def requests(source, sink, asked):
    while True:
        request = await frame(source)
        asked.append(struct.unpack_from(">h", request, 4)[0])
        sink.write(request)
        await sink.drain()

async def answers(source, sink, asked):
    global left
    while True:
        answer = await frame(source)
        if asked.pop(0) == PRODUCE and left:
            left -= 1
            print("lost", flush=True)
            return
        sink.write(answer)
        await sink.drain()

async def relay(reader, writer):
    source, sink = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    asked = []
    both = requests(reader, sink, asked), answers(source, writer, asked)
    ways = [asyncio.ensure_future(each) for each in both]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for each in ways:
        each.cancel()
    await asyncio.gather(*ways, return_exceptions=True)
    sink.close()
    writer.close()

async def main():
    server = await asyncio.start_server(relay, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class Relay:
    def __init__(self, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.port = port
        self._process = process

    def cut(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def heal(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    (own,) = free_ports(1)
    command = [sys.executable, "-c", RELAY, str(own), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Relay(own, process)
        finally:
            process.kill()


@contextmanager
def losing_answers(own: int, port: int, count: int) -> Iterator[IO[bytes]]:
    """On the port `own`. What comes out has a line for each answer that was lost."""
    command = [sys.executable, "-c", LOSING, str(own), str(port), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.stdout
        finally:
            process.kill()
