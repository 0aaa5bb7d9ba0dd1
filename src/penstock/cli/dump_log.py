"""`penstock dump-log`: prints or verifies the files of a log without a broker."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import examples
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.log_files import DumpOptions, Row

EXAMPLES = examples(
    ("The batches of one segment", "penstock dump-log penstock-data/logs/orders-0/00000000000000000000.log"),
    (
        "Every file of a partition, with its records",
        "penstock dump-log penstock-data/logs/orders-0 --records",
    ),
    ("Is anything damaged?", "penstock dump-log penstock-data/logs --verify"),
)


def add_to(app: typer.Typer) -> None:
    app.command(
        "dump-log",
        help="Print the files of a log (.log, .index, .timeindex, .snapshot, checkpoints) without a broker. "
        "Exits with 1 if one is damaged, and says where.",
        epilog=EXAMPLES,
    )(dump_log)


def dump_log(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE-OR-FOLDER...", help="What to read.")],
    records: Annotated[bool, typer.Option("--records", help="Print the records of each batch, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Read every record, hold indexes against their log, print a line for each file."
        ),
    ] = False,
) -> None:
    from penstock.cli.log_files import DumpOptions

    if verify and records:
        raise typer.BadParameter("choose --verify or --records")
    files = files_of(paths)
    options = DumpOptions(with_records=records, open_batches=verify)
    # All files are processed, even if one of them is damaged.
    sound = [_verify(file, options, as_json) if verify else _dump(file, options, as_json) for file in files]
    if not all(sound):
        from penstock.cli.output import counted

        damaged = sound.count(False)
        verb = "is" if damaged == 1 else "are"
        raise CommandFailed(f"{damaged} of {counted(len(sound), 'file')} {verb} damaged.")


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the log files; raise BadParameter before anything is printed if a path is not one."""
    files: list[Path] = []
    for path in paths:
        try:
            found = _files_in(path)
            for file in found:
                file.open("rb").close()
        except OSError as problem:
            raise _usage_error(f"cannot read {problem.filename or path}: {problem.strerror}") from problem
        files += found
    return files


def _files_in(path: Path) -> list[Path]:
    from penstock.cli.log_files import is_log_file

    if not path.exists():
        raise _usage_error(f"there is no {path}")
    if path.is_dir():
        walked = os.walk(path, onerror=_raise)  # rglob leaves folders that cannot be read out in silence
        inside = (Path(folder, name) for folder, _, names in walked for name in names)
        found = sorted(file for file in inside if is_log_file(file) and file.is_file())
        if not found:
            raise _usage_error(f"{path} holds no files of a log")
        return found
    if not path.is_file():
        raise _usage_error(f"{path} is neither a file nor a folder")
    if not is_log_file(path):
        raise _usage_error(
            f"{path} is no file of a log: a .log, .index, .timeindex or .snapshot file has a number "
            "for a name, a checkpoint ends in -checkpoint"
        )
    return [path]


def _raise(problem: OSError) -> None:
    raise problem


def _usage_error(problem: str) -> typer.BadParameter:
    return typer.BadParameter(problem, param_hint="FILE-OR-FOLDER")


def _dump(file: Path, options: "DumpOptions", as_json: bool) -> bool:
    from penstock.cli.log_files import rows_of
    from penstock.cli.output import json_line
    from penstock.errors import CorruptData

    if not as_json:
        typer.echo(f"{file}")
    try:
        for row in _readable(file, rows_of(file, options)):
            if as_json:
                json_line({"file": str(file), **_plain(row)})
            else:
                typer.echo("  " + row_text(row))
    except CorruptData as damage:
        _report_damage(file, [str(damage)], as_json)
        return False
    return True


def _verify(file: Path, options: "DumpOptions", as_json: bool) -> bool:
    from penstock.cli.log_files import index_problems, rows_of
    from penstock.cli.output import counted, json_line
    from penstock.errors import CorruptData

    started = time.monotonic()
    count = 0
    problems: list[str] = []
    try:
        for row in _readable(file, rows_of(file, options)):
            count += row.get("records", 1)
        if file.suffix == ".log":
            problems += index_problems(file)
    except CorruptData as damage:
        problems.append(str(damage))
    if problems:
        _report_damage(file, problems, as_json)
    elif as_json:
        json_line({"file": str(file), "ok": True, "entries": count})
    else:
        what = counted(count, "record") if file.suffix == ".log" else counted(count, "entry", "entries")
        typer.echo(f"{file}: ok, {what} in {time.monotonic() - started:.2f} s")
    return not problems


def _report_damage(file: Path, problems: Sequence[str], as_json: bool) -> None:
    from penstock.cli.output import json_line

    for problem in problems:
        if as_json:
            json_line({"file": str(file), "type": "damage", "problem": problem})
        else:
            typer.echo(f"{file}: DAMAGED {problem}")


def _readable(file: Path, rows: Iterator["Row"]) -> Iterator["Row"]:
    try:
        yield from rows
    except OSError as problem:
        raise CommandFailed(f"cannot read {file}: {problem.strerror}.") from problem


def row_text(row: "Row") -> str:
    """Format a row as one line for users, without the empty fields that JSON output includes."""
    from penstock.cli.output import counted, time_text

    match row["type"]:
        case "batch":
            marks = [name for name in ("transactional", "control") if row[name]]
            producer = (
                f"producer {row['producer_id']}/{row['producer_epoch']} sequence {row['base_sequence']}"
            )
            parts = [
                f"offsets {row['base_offset']} to {row['last_offset']}",
                counted(row["records"], "record"),
                f"position {row['position']}",
                counted(row["bytes"], "byte"),
                row["codec"],
                f"epoch {row['leader_epoch']}",
                producer if row["producer_id"] >= 0 else "no producer",
                f"{row['timestamp_type']} time {time_text(row['max_timestamp'])}",
                *marks,
            ]
            return "  ".join(parts)
        case "record":
            shown = {name: _text(row[name]) for name in ("key", "value")}
            headers = "".join(f"  {name}={_text(value)}" for name, value in row["headers"])
            return (
                f"  offset {row['offset']}  {time_text(row['timestamp'])}  "
                f"key {shown['key']}  value {shown['value']}{headers}"
            )
        case _:
            return "  ".join(
                f"{name.replace('_', ' ')} {time_text(value) if name == 'timestamp' else value}"
                for name, value in row.items()
                if name != "type"
            )


def _text(content: bytes | None) -> str:
    return "null" if content is None else repr(content)[1:]


def _plain(row: "Row") -> dict[str, Any]:
    """Convert the row to JSON values; records have the form of `penstock consume --format json`."""
    if row["type"] != "record":
        return row
    from penstock.cli.records.record_output import content_fields, header_pairs

    return {
        "type": "record",
        "offset": row["offset"],
        "timestamp": row["timestamp"],
        **content_fields(row["key"], row["value"]),
        "headers": header_pairs(row["headers"]),
    }
