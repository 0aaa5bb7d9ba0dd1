"""Output of commands: aligned columns for users, JSON for scripts.

Columns are not truncated to the terminal's width and have no frames, so that `grep` and `awk` work. Numbers
are aligned to the right. All output except the result goes to stderr.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from penstock.errors import CommandFailed
from penstock.limits import GIB, KIB, MIB

Cell = str | int | None


def table(titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    typer.echo("\n".join(table_lines(titles, list(rows))))


def table_lines(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *texts, strict=True)]
    is_number = [
        bool(rows) and all(isinstance(row[index], int | None) for row in rows) for index in range(len(titles))
    ]
    return [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in [list(titles), *texts]
    ]


def json_line(value: Any) -> None:
    typer.echo(json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def note(text: str) -> None:
    typer.echo(text, err=True)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def bytes_text(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def time_text(timestamp_ms: int) -> str:
    """Format a time in UTC with milliseconds; `-` for no time, the number if no date can represent it."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user confirms; raise CommandFailed otherwise.

    Without a terminal, no question is printed. Ctrl-C counts as no answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} Without a terminal the command cannot ask: give --yes to do it.")
    typer.echo(f"{question} [y/N]: ", err=True, nl=False)
    answer = sys.stdin.readline()
    if not answer:  # Ctrl-D leaves the cursor after the question
        note("")
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was done.")
