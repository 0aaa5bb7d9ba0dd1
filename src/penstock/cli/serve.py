"""`penstock serve`: one broker, until Ctrl-C or SIGTERM."""

import asyncio
import gc
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Address
from penstock.config.sources import load
from penstock.errors import ConfigError

EXAMPLES = """
Start a broker that only this machine can reach, with its data in ./penstock-data:

    penstock serve

Another data directory, other ports (0 takes a free one):

    penstock serve --data-dir /var/lib/penstock --kafka 127.0.0.1:0 --http 127.0.0.1:0

Reachable by others, without encryption or users:

    penstock serve --kafka 0.0.0.0:9092 --advertised broker1.example.com:9092 --insecure

Kafka's settings, from a file or one by one:

    penstock serve --config penstock.toml --set log.retention.hours=24
"""


def add_to(app: typer.Typer) -> None:
    app.command("serve", help="Start a broker.", epilog=EXAMPLES)(serve)


def serve(
    data_dir: Annotated[
        str | None, typer.Option(help="Where everything is kept. Default ./penstock-data.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(help="host:port for Kafka clients. Default 127.0.0.1:9092.")
    ] = None,
    http: Annotated[str | None, typer.Option(help="host:port for HTTP. Default 127.0.0.1:8080.")] = None,
    advertised: Annotated[
        str | None, typer.Option(help="host:port that clients are told to connect to.")
    ] = None,
    node_id: Annotated[int | None, typer.Option(help="The number of this broker. Default 1.")] = None,
    rack: Annotated[str | None, typer.Option(help="Where this broker stands.")] = None,
    metadata: Annotated[
        str | None, typer.Option(help="Where the cluster's metadata is kept. Default embedded.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings, keys quoted.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, over the file. May be repeated.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow listening beyond loopback without TLS.")
    ] = False,
) -> None:
    flags = {
        "data_dir": data_dir,
        "kafka": kafka,
        "http": http,
        "advertised": advertised,
        "node_id": node_id,
        "rack": rack,
        "metadata": metadata,
        "insecure": insecure,
    }
    run(load(flags, set_ or (), read_config_file(config)))


def read_config_file(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error


def run(config: BrokerConfig) -> None:
    import uvloop

    # A worker thread that holds the interpreter delays every client; it must let go soon.
    sys.setswitchinterval(0.0005)
    _allow_many_files()
    with suppress(KeyboardInterrupt):
        uvloop.run(_serve(config))


async def _serve(config: BrokerConfig) -> None:
    from penstock.broker.broker import World, running_broker
    from penstock.host.clock import SystemClock
    from penstock.http.app import HttpServer
    from penstock.observability.logs import StreamLog

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    world = World(log=StreamLog(SystemClock()))
    async with running_broker(config, world) as broker:
        http = HttpServer(broker.not_ready)
        http_address = await http.start(config.http)
        try:
            # What was made until now lives as long as the process: the collector need not look again.
            gc.collect()
            gc.freeze()
            addresses = ",".join(str(Address(listener.host, listener.port)) for listener in broker.listeners)
            print(f"penstock ready kafka={addresses} http={http_address}", flush=True)
            await stop.wait()
            world.log.info("broker.stopping")
        finally:
            await http.stop()


def _allow_many_files() -> None:
    """As many open files as this process may have: one for every partition that is written."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
