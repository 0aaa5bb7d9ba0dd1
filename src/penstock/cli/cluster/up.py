"""`penstock cluster up`: runs etcd and several brokers as local processes, for development."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.cluster.app import cluster_app
from penstock.cli.command import examples

EXAMPLES = examples(
    ("Three brokers, their data in ./penstock-cluster", "penstock cluster up --brokers 3"),
    (
        "The same cluster again, with everything it had",
        "penstock cluster up --data-dir ./penstock-cluster",
    ),
    (
        "Other ports: Kafka on 19092 and 19093, HTTP on 18080 and 18081",
        "penstock cluster up --brokers 2 --kafka-port 19092 --http-port 18080",
    ),
    (
        "What happens if a broker dies (from another terminal)?",
        "kill -9 $(cat penstock-cluster/broker-1/penstock.pid)",
    ),
    ("A broker that ends is started again", "penstock cluster up --restart"),
    (
        "Every broker with a setting that is not the default",
        "penstock cluster up --set log.flush.policy=os",
    ),
)
BROKERS_MAX = 64


@cluster_app.command(
    help="Start etcd and brokers on this machine, for development, until Ctrl-C.\n\n"
    "Node N, counted from 0, listens on the ports given plus N. What it keeps is in DIR/broker-N, the id of "
    "its process in DIR/broker-N/penstock.pid, what it logs in DIR/broker-N/penstock.log. An existing DIR "
    "goes on with the cluster it holds. etcd is the machine's own, and where there is none the one that "
    "pip install 'penstock[etcd]' brings; it listens on free ports and logs to DIR/etcd.log. "
    "On Linux everything ends with this command, however that ends.",
    epilog=EXAMPLES,
)
def up(
    brokers: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=1,
            max=BROKERS_MAX,
            help="Number of brokers. More than DIR has adds some. Default: those that DIR has, or 3.",
        ),
    ] = None,
    data_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where everything is kept.")] = Path(
        "./penstock-cluster"
    ),
    kafka_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65_535, help="For Kafka clients, of node 0.")
    ] = 9092,
    http_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65_535, help="For HTTP, of node 0.")
    ] = 8080,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of every broker, for this run. May be repeated. "
            "`python -m penstock.config.reference` lists them.",
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Restart a process that has died. Without this option it stays stopped."
        ),
    ] = False,
) -> None:
    import asyncio

    from penstock.cli.local_cluster.checks import locked_folder
    from penstock.cli.local_cluster.local_cluster import LocalCluster
    from penstock.cli.local_cluster.plan import LocalClusterOptions
    from penstock.cli.main import EXIT_INTERRUPTED

    options = LocalClusterOptions(str(data_dir), brokers, kafka_port, http_port, tuple(settings or ()))
    with locked_folder(options) as plan:
        cluster = LocalCluster(plan, restarts=restart)
        asyncio.run(cluster.run())
    if cluster.was_killed:
        raise typer.Exit(EXIT_INTERRUPTED)
