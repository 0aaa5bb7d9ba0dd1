"""What this machine can do at best: the limits that no server passes."""

import os
import socket
import threading
import time
from collections.abc import Iterator

from benchmarks.brokers import temporary_folder
from benchmarks.figures import Better, percentile
from benchmarks.machine import SYNC_BYTES, sync_times_ms
from benchmarks.peers.results import Sample
from benchmarks.peers.servers.process import LOOPBACK
from benchmarks.peers.sizes import Sizes

MACHINE = "machine"
MB = 1_000_000
CHUNK_BYTES = 1024 * 1024
COPY_BYTES = 64 * CHUNK_BYTES


def measure(sizes: Sizes) -> Iterator[Sample]:
    for figure, rate in (
        ("copying memory", _copy_rate(sizes.limit_bytes)),
        ("loopback, one connection", _loopback_rate(sizes.limit_bytes)),
        ("writing one file, then fdatasync", _write_rate(sizes.limit_bytes)),
    ):
        yield _sample(figure, rate / MB, "MB/s", Better.HIGHER)
    took_ms = sync_times_ms()
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        yield _sample(f"fdatasync of {SYNC_BYTES} B, {label}", percentile(took_ms, share), "ms", Better.LOWER)


def _sample(figure: str, value: float, unit: str, better: Better) -> Sample:
    return Sample(question="limits", figure=figure, unit=unit, contender=MACHINE, value=value, better=better)


def _copy_rate(total: int) -> float:
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    target[:] = source  # the pages exist from here on
    rounds = max(1, total // COPY_BYTES)
    began = time.perf_counter()
    for _ in range(rounds):
        target[:] = source
    return rounds * COPY_BYTES / (time.perf_counter() - began)


def _loopback_rate(total: int) -> float:
    received = 0

    def drain() -> None:
        nonlocal received
        buffer = bytearray(CHUNK_BYTES)
        while count := incoming.recv_into(buffer):
            received += count

    with (
        socket.create_server((LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname()) as outgoing,
    ):
        incoming, _ = server.accept()
        with incoming:
            reader = threading.Thread(target=drain)
            began = time.perf_counter()
            reader.start()
            chunk = bytes(CHUNK_BYTES)
            for _ in range(total // CHUNK_BYTES):
                outgoing.sendall(chunk)
            outgoing.shutdown(socket.SHUT_WR)
            reader.join()
    return received / (time.perf_counter() - began)


def _write_rate(total: int) -> float:
    with temporary_folder() as folder:
        os.sync()
        descriptor = os.open(folder / "probe", os.O_CREAT | os.O_WRONLY)
        try:
            chunk = bytes(CHUNK_BYTES)
            began = time.perf_counter()
            for _ in range(total // CHUNK_BYTES):
                os.write(descriptor, chunk)
            os.fdatasync(descriptor)
            return total / (time.perf_counter() - began)
        finally:
            os.close(descriptor)
