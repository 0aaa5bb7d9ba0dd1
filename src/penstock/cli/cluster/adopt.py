"""`penstock cluster adopt`: makes a standalone broker the first broker of a cluster, with its data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.cluster.app import cluster_app
from penstock.cli.command import examples

if TYPE_CHECKING:
    from penstock.metadata.etcd.url import EtcdUrl

EXAMPLES = examples(
    (
        "The broker whose data is in ./penstock-data; stop it first",
        "penstock cluster adopt --data-dir ./penstock-data --metadata etcd://127.0.0.1:2379",
    ),
    (
        "Back again, as long as no broker was started with that etcd",
        "penstock cluster adopt --data-dir ./penstock-data --metadata etcd://127.0.0.1:2379 --undo",
    ),
)


@cluster_app.command(
    help="Make a broker that is alone the first of a cluster. Topics, settings, groups and records stay.\n\n"
    "The broker must be stopped, and etcd must hold no cluster. If this is interrupted, the broker is alone "
    "as before: run it again. Afterwards the broker is started with --metadata, and others can join it.",
    epilog=EXAMPLES,
)
def adopt(
    data_dir: Annotated[Path, typer.Option(metavar="DIR", help="Data directory of the broker.")],
    metadata: Annotated[
        str, typer.Option(metavar="STORE", help="etcd://host:port,... in which the cluster is to be.")
    ],
    undo: Annotated[
        bool, typer.Option("--undo", help="Make it alone again, if no broker has used that etcd since.")
    ] = False,
) -> None:
    import asyncio

    from penstock.config.setting import hide_password
    from penstock.metadata.etcd.url import parse_etcd_url

    url, path = parse_etcd_url(metadata), str(data_dir)
    asyncio.run(_release(path, url) if undo else _adopt(path, url, hide_password(metadata)))


async def _adopt(path: str, url: "EtcdUrl", shown_url: str) -> None:
    from penstock.broker.cluster.directory_adoption import adopt_directory
    from penstock.cli.output import counted, note
    from penstock.host.os_disk import OsDisk
    from penstock.host.randomness import SystemRandomness
    from penstock.metadata.etcd.etcd_store import EtcdStore

    store = EtcdStore(url)
    try:
        adopted = await adopt_directory(OsDisk(), path, store, SystemRandomness())
    finally:
        await store.close()
    if adopted is None:
        note(f"{path} belongs to that cluster already: nothing was done")
        return
    image, node_id = adopted.image, adopted.identity.node_id
    topics, partitions = counted(len(image.topics), "topic"), counted(image.partition_count, "partition")
    typer.echo(f"node {node_id} is the first of cluster {image.cluster_id}, with {topics} and {partitions}")
    note(f"start it with: penstock serve --data-dir {path} --node-id {node_id} --metadata {shown_url}")


async def _release(path: str, url: "EtcdUrl") -> None:
    from penstock.broker.cluster.directory_adoption import release_directory
    from penstock.cli.output import note
    from penstock.host.os_disk import OsDisk
    from penstock.metadata.etcd.etcd_store import EtcdStore

    store = EtcdStore(url)
    try:
        identity = await release_directory(OsDisk(), path, store)
    finally:
        await store.close()
    if identity is None:
        note(f"{path} belongs to a broker that is alone already: nothing was done")
        return
    typer.echo(f"node {identity.node_id} is alone again")
    note(f"start it with: penstock serve --data-dir {path} --node-id {identity.node_id}")
