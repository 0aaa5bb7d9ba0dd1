"""`penstock check-config`: would a broker start with these settings?

It takes exactly what `penstock serve` takes, reads it the same way and starts nothing.
"""

from functools import wraps
from typing import Any

import typer

from penstock.cli.command import examples
from penstock.cli.serve import read_config_file, serve
from penstock.config.broker_settings import find_setting
from penstock.config.sources import load

HIDDEN = "(hidden)"
EXAMPLES = examples(
    ("A file, before it is put in use", "penstock check-config --config penstock.toml"),
    (
        "The same with a setting changed",
        "penstock check-config --config penstock.toml --set num.partitions=6",
    ),
)


def add_to(app: typer.Typer) -> None:
    app.command(
        "check-config",
        help="Check settings without starting a broker. Prints ok and what differs from the defaults, "
        "or every problem. Takes what `penstock serve` takes.",
        epilog=EXAMPLES,
    )(check_config)


@wraps(serve)
def check_config(**given: Any) -> None:
    file, sets = given.pop("config"), given.pop("set_")
    config = load(given, sets or (), read_config_file(file))
    typer.echo("ok")
    for key, value in changed_settings(config.given.static).items():
        typer.echo(f"{key} = {value}")


def changed_settings(static: Any) -> dict[str, str]:
    """Those that were given and are not what they would be anyway. Secrets are not shown."""
    changed = {}
    for key, text in sorted(static.items()):
        setting = find_setting(key)
        assert setting is not None, "load refuses keys nobody declared"
        if text != setting.default_text:
            changed[key] = HIDDEN if setting.sensitive else text
    return changed
