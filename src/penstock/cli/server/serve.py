"""`penstock serve`: runs one broker until Ctrl-C or SIGTERM."""

import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from penstock.cli.main import with_full_stop
from penstock.cli.server.serve_options import configuration, parser
from penstock.cli.server.start_checks import taken_addresses
from penstock.cli.streams import OutputFailed
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Address, Listener
from penstock.errors import CommandFailed, ConfigError, OperatorError, StorageFailed, StorageFull
from penstock.host.folder_lock import FolderLock
from penstock.host.os_disk import OsDisk
from penstock.log.data_directory import IDENTITY_FILE, DataDirectory, identity_in

EXAMPLES = (
    ("A broker that only this machine can reach, its data in ./penstock-data", "penstock serve"),
    (
        "Another data directory, other ports (0 takes a free one)",
        "penstock serve --data-dir /var/lib/penstock --kafka 127.0.0.1:0 --http 127.0.0.1:0",
    ),
    (
        "Reachable by others, without encryption or users",
        "penstock serve --kafka 0.0.0.0:9092 --advertised broker1.example.com:9092 --insecure",
    ),
    (
        "A broker of a cluster, whose brokers share an etcd",
        "penstock serve --node-id 2 --metadata etcd://10.0.0.1:2379,10.0.0.2:2379",
    ),
    (
        "Kafka's settings, from a file or one by one",
        "penstock serve --config penstock.toml --set log.retention.hours=24",
    ),
)


def main(argv: Sequence[str]) -> None:
    run(configuration(parser("serve", "Start a broker.", EXAMPLES).parse_args(argv)))


def run(config: BrokerConfig) -> None:
    import uvloop

    if problems := list(taken_addresses(config)):
        raise CommandFailed("\n".join(map(with_full_stop, problems)))
    # SQLite creates files that all users who can read the folder may open, unlike Penstock's own files.
    os.umask(os.umask(0o077) | 0o027)
    # A worker thread that holds the interpreter lock delays every client, so the switch interval is short.
    sys.setswitchinterval(0.0005)
    _allow_many_files()
    try:
        with suppress(KeyboardInterrupt), remove_unused_new_folder(config.node.data_dir):
            uvloop.run(_serve(config))
    except OperatorError as problem:
        # The settings were validated before. The remaining problems are in the environment, such as a port
        # that another process uses, so even a ConfigError is no wrong use.
        raise CommandFailed(str(problem), remedy=problem.remedy) from problem
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        raise StorageFull(f"the disk of {config.node.data_dir} is full") from problem


@contextmanager
def remove_unused_new_folder(path: str) -> Iterator[None]:
    """Remove the data directory that a rejected start created, for example one with a used node id.

    A folder that existed before, or that holds a partition, is never removed.
    """
    was_there = os.path.lexists(path)
    try:
        yield
    except ConfigError:
        if not was_there:
            _remove_unused(path)
        raise


def _remove_unused(path: str) -> None:
    """Remove the folder, unless it holds partitions or another process has begun to use it."""
    disk = OsDisk()
    with suppress(StorageFailed), ExitStack() as stack:
        if not disk.exists(f"{path}/{IDENTITY_FILE}"):
            return
        # The lock fails if another process uses the folder; then nothing is removed.
        stack.callback(FolderLock(path).release)
        if not DataDirectory(disk, path, identity_in(disk, path)).partitions_on_disk():
            disk.remove_folder(path)


async def _serve(config: BrokerConfig) -> None:
    from penstock.broker.broker import Environment, running_broker
    from penstock.host.clock import SystemClock
    from penstock.http.server import HttpServer
    from penstock.observability.logs import StreamLog

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    world = Environment(log=StreamLog(SystemClock()))
    async with running_broker(config, world) as broker:
        broker.on_membership_ended = stop.set
        # The membership may have ended before the callback was set.
        if broker.has_ended_membership:
            stop.set()
        http = HttpServer(config.http, broker, world.log, config.http_tokens_path)
        try:
            # Objects that exist now live as long as the process: the garbage collector need not scan them
            # again.
            gc.collect()
            gc.freeze()
            if not stop.is_set():
                _print_ready_line(broker.listeners, http.address)
            http.start()
            await stop.wait()
            world.log.info("broker.stopping")
        finally:
            await http.stop()
    if broker.has_ended_membership:
        raise CommandFailed(
            f"this broker cannot go on in its cluster, and has left it: {broker.failure}. "
            "Its data is as it was: start it again"
        )


def _print_ready_line(listeners: Sequence[Listener], http: Address) -> None:
    addresses = ",".join(str(Address(listener.host, listener.port)) for listener in listeners)
    try:
        print(f"penstock ready kafka={addresses} http={http}", flush=True)
    except OutputFailed as problem:  # the parent process waits for this line, possibly forever
        raise CommandFailed(f"cannot write the ready line to stdout: {problem.reason}.") from problem


def _allow_many_files() -> None:
    """Raise the limit of open files to its maximum: every partition that is written has an open file."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
