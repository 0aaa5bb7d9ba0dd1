"""`penstock check-config`: checks whether a broker would start with given settings.

The command accepts the options of `penstock serve`, parses them in the same way and starts nothing.
"""

import sys
from collections.abc import Mapping, Sequence

from penstock.cli.server.serve_options import configuration, parser
from penstock.config.broker_settings import find_setting

HIDDEN = "(hidden)"
DESCRIPTION = (
    "Check settings without starting a broker. Prints ok and what differs from the defaults, "
    "or every problem. Takes what `penstock serve` takes."
)
EXAMPLES = (
    ("A file, before it is put in use", "penstock check-config --config penstock.toml"),
    (
        "The same with a setting changed",
        "penstock check-config --config penstock.toml --set num.partitions=6",
    ),
)


def main(argv: Sequence[str]) -> None:
    config = configuration(parser("check-config", DESCRIPTION, EXAMPLES).parse_args(argv))
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print("ok")
    for key, value in changed_settings(config.given.static).items():
        print(f"{key} = {value}")


def changed_settings(static: Mapping[str, str]) -> dict[str, str]:
    """Return the given settings that differ from their defaults; secrets are hidden."""
    changed = {}
    for key, text in sorted(static.items()):
        setting = find_setting(key)
        assert setting is not None, "load rejects keys that are not declared"
        if text != setting.default_text:
            changed[key] = HIDDEN if setting.sensitive else text
    return changed
