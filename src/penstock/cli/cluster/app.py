"""`penstock cluster`: commands for several brokers that form one cluster.

Rule: a command that starts processes or changes a data directory first checks whether it can succeed, and
fails with one sentence before it changes anything.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.command import examples, new_app

EXAMPLES: Final = examples(
    ("Three brokers on this machine, to develop with", "penstock cluster up --brokers 3"),
    (
        "A broker with its data becomes the first of a cluster",
        "penstock cluster adopt --data-dir ./penstock-data --metadata etcd://127.0.0.1:2379",
    ),
    ("How the brokers are, and what one lost disk would lose", "penstock cluster status"),
    ("Before a broker is stopped for long", "penstock cluster drain 2"),
)
COMMAND_FILES: Final = (
    "penstock.cli.cluster.up",
    "penstock.cli.cluster.adopt",
    "penstock.cli.cluster.status",
    "penstock.cli.cluster.drain",
    "penstock.cli.cluster.reassign",
    "penstock.cli.cluster.balance",
    "penstock.cli.cluster.elect",
    "penstock.cli.cluster.unregister",
    "penstock.cli.cluster.features",
)

POLL_S: Final = 0.5
"""Interval at which a waiting command checks again."""

UrlOption = Annotated[
    str, typer.Option(envvar="PENSTOCK_URL", metavar="URL", help="The HTTP address of any broker.")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="PATH",
        help="A file with the token that changes need. Default: the token in PENSTOCK_TOKEN, if any.",
    ),
]

cluster_app = new_app(help="Run and look after a cluster of brokers.", epilog=EXAMPLES)


def add_to(app: typer.Typer) -> None:
    for name in COMMAND_FILES:  # importing a module adds its command to `cluster_app` once
        import_module(name)
    app.add_typer(cluster_app, name="cluster")
