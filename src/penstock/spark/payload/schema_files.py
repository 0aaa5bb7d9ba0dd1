"""Schema that the option valueSchema names: a file, or the schema itself.

A file is read once, on the driver, and tasks get its content. So executors need no copy, and a changed file
takes effect when a query is started again.

Rule: Every problem is a ConfigError that names the file and the position in it.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import ConfigError

OPTION = "valueSchema"


class SchemaFile(NamedTuple):
    """Content of a schema, with the name that error messages use."""

    name: str
    """For messages: the path, or the option if the schema is given inline."""
    content: bytes

    def error_at(self, place: str, problem: str) -> ConfigError:
        where = f"{self.name}, {place}" if place else self.name
        return ConfigError(f"schema {where}: {problem}")

    @property
    def text(self) -> str:
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.error_at(f"byte {error.start}", "it is no text in UTF-8") from None

    def document(self) -> Any:
        """The content, parsed as JSON."""
        text = self.text
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise self.error_at(place, f"it is no JSON: {error.msg}") from None
        except RecursionError:
            raise self.error_at("", "it is nested too deeply") from None


class SchemaVersion(NamedTuple):
    """Schema with its number in a schema registry."""

    number: int | None
    """The schema's number in a schema registry. None: any number."""
    file: SchemaFile


def read_schema_file(path: str) -> SchemaFile:
    try:
        return SchemaFile(path, Path(path).read_bytes())
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
    except ValueError as error:  # a null character in a path
        problem = str(error)
    raise ConfigError(
        f"option {OPTION} is {path!r}, and this file cannot be read: {problem}. "
        f"It is looked for on the driver, from {Path.cwd()}"
    )


def schema_text(text: str) -> SchemaFile:
    return SchemaFile(f"in option {OPTION}", text.encode())
