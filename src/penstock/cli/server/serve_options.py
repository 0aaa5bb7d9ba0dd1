"""Options of `serve` and `check-config`, and their conversion to a configuration."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from penstock.cli.server.start_checks import file_problems
from penstock.config.broker import BrokerConfig
from penstock.config.sources import load
from penstock.errors import ConfigError

FLAGS = ("data_dir", "kafka", "http", "advertised", "node_id", "rack", "metadata", "insecure")


class _ServeParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with one sentence, in the form of all other errors."""
        said = message.removeprefix("argument ").replace("unrecognized arguments:", "there is no option")
        raise ConfigError(f"{said}; `{self.prog} --help` lists what there is")


def parser(command: str, description: str, examples: Sequence[tuple[str, str]]) -> argparse.ArgumentParser:
    lines = [f"  {wish}:\n      {typed}" for wish, typed in examples]
    made = _ServeParser(
        prog=f"penstock {command}",
        description=description,
        epilog="\n\n".join(["examples:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--data-dir", metavar="FOLDER", help="where everything is kept (default ./penstock-data)")
    add("--kafka", metavar="HOST:PORT", help="for Kafka clients (default 127.0.0.1:9092)")
    add("--http", metavar="HOST:PORT", help="for HTTP (default 127.0.0.1:8080)")
    add("--advertised", metavar="HOST:PORT", help="what clients are told to connect to")
    add("--node-id", metavar="NUMBER", help="the number of this broker (default 1)")
    add("--rack", metavar="NAME", help="where this broker stands")
    add("--metadata", metavar="STORE", help="embedded (the default), or etcd://host:port,... of a cluster")
    add("--config", metavar="FILE", help="settings in TOML, keys quoted")
    listed = "`python -m penstock.config.reference` lists them"
    add(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        help=f"a setting, over the file; may be repeated; {listed}",
    )
    add("--insecure", action="store_true", help="allow listening beyond loopback without TLS")
    return made


def configuration(given: argparse.Namespace) -> BrokerConfig:
    """Load the configuration; raise ConfigError with all problems, including unusable files."""
    flags = {name: getattr(given, name) for name in FLAGS}
    config = load(flags, given.set or (), _read(given.config), file_name=given.config or "")
    if problems := file_problems(config):
        raise ConfigError("\n".join(problems))
    return config


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read the config file {path}: {error.strerror}; name another with --config"
        ) from error
