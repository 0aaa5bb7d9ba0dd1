"""Options that the commands of `penstock cluster` share."""

from pathlib import Path
from typing import Annotated, Final

import typer

URL_DEFAULT: Final = "http://127.0.0.1:8080"
POLL_S: Final = 0.5
"""Interval at which a waiting command checks again."""

UrlOption = Annotated[
    str, typer.Option(envvar="PENSTOCK_URL", metavar="URL", help="The HTTP address of any broker.")
]
TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, help="How long the broker may take to answer.")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="PATH",
        help="A file with the token that changes need. Default: the token in PENSTOCK_TOKEN, if any.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
