"""A process between somebody and a port of this host. While it is paused nothing passes, and nobody is told.

Rule: what was started here is ended here, by its pid, however the test ends.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.integration.etcd_process import free_ports

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
