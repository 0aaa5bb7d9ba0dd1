"""What a reader of the documents follows, types or copies: links, commands, targets, code and settings.

Nothing is run here and nothing is asked of a network.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from penstock.cli.client_app import app
from penstock.cli.server.serve_options import parser as serve_parser
from penstock.errors import ConfigError
from tools.documents import ROOT, Block, anchors, blocks, links, pages, slug, without_blocks

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The exception of the click that typer brings; typer itself exports only kinds of it."""
every_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
SHELL_LANGUAGES = {"", "console", "sh", "text"}
CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"])*\"")
MAKE = re.compile(r"(?:^|\s)make ((?:[A-Z]+=\S+ )*)([a-z][a-z-]*)")


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page.read_text()):
        target = (page.parent / link.path).resolve() if link.path else page
        assert target.exists(), f"line {link.line}: no file {link.path}"
        if link.anchor:
            assert link.anchor in anchors(target.read_text()), f"line {link.line}: no heading #{link.anchor}"


@every_page
def test_code_can_be_read_by_what_it_is_for(page: Path) -> None:
    readers: dict[str, Callable[[str], object]] = {
        "python": lambda code: compile(code, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),
        "json": json.loads,
        "toml": tomllib.loads,
    }
    for block in blocks(page.read_text()):
        if block.language in readers:
            try:
                readers[block.language](block.code)
            except (SyntaxError, ValueError) as problem:
                pytest.fail(f"line {block.line}: {problem}")


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    for block in blocks(page.read_text()):
        for line in typed_lines(block):
            for words in penstock_commands(line):
                try:
                    parse(words)
                except (AssertionError, ConfigError, UsageError, SystemExit) as problem:
                    pytest.fail(f"block at line {block.line}: penstock {shlex.join(words)}: {problem}")


@every_page
def test_what_belongs_to_an_item_of_a_list_is_a_part_of_it_in_the_site_too(page: Path) -> None:
    """Git hosts make do with three spaces or two; the Markdown of the site needs four for each level."""
    text = page.read_text()
    indents = {block.line: block.indent for block in blocks(text)}
    for number, (before, line) in enumerate(pairwise(without_blocks(text).splitlines()), 2):
        if line.strip() and (not before.strip() or re.match(r" +([-*]|\d+\.) ", line)):
            indents[number] = len(line) - len(line.lstrip())
    assert {number: indent for number, indent in indents.items() if indent % 4} == {}


@every_page
def test_files_of_the_code_base_that_a_page_names_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return
    named = {
        span for span in CODE_SPAN.findall(page.read_text()) if re.fullmatch(r"[\w.-]+(/[\w.-]+)+\.py", span)
    }
    roots = (ROOT / "src" / "penstock", ROOT, page.parent)
    assert sorted(name for name in named if not any((root / name).exists() for root in roots)) == []


@every_page
def test_targets_of_make_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    text = page.read_text()
    typed = [line for block in blocks(text) for line in typed_lines(block)]
    named = {found[2] for code in [*typed, *CODE_SPAN.findall(text)] if (found := MAKE.search(code))}
    assert sorted(named - targets) == []


def test_the_site_shows_every_page() -> None:
    """`make docs` fails otherwise; this is known sooner. Decision records are reached from their list."""
    config = (ROOT / "mkdocs.yml").read_text()
    shown = set(re.findall(r"^ +- (?:[^:#\n]+: )?(\S+\.md)$", config, re.MULTILINE))
    left_out = re.findall(r"^  (\S+\.md)$", config, re.MULTILINE)
    there = {str(page.relative_to(ROOT)) for page in pages()}
    assert shown - there == set()
    assert {page for page in there - shown if not any(fnmatch(page, name) for name in left_out)} == set()


def test_mistakes_in_a_page_are_found() -> None:
    page = """[a](b.md#c) `[not](one.md)`\n\n## Add an `API`: how?\n\n```console
$ cat x | penstock produce orders --key '7|' > y   # a comment
7 records
$ for i in 1 2; do .venv/bin/penstock topic creat a; done
```
"""
    assert list(links(page)) == [(1, "b.md", "c")]
    assert anchors(page) == {slug("Add an `API`: how?")} == {"add-an-api-how"}
    (block,) = blocks(page)
    first, second = [words for line in typed_lines(block) for words in penstock_commands(line)]
    assert first == ["produce", "orders", "--key", "7_"]
    parse(first)
    with pytest.raises(AssertionError, match="no command creat"):
        parse(second)
    with pytest.raises(UsageError, match="--keys"):
        parse(["produce", "orders", "--keys", "7"])
    with pytest.raises(AssertionError, match="missing"):
        parse(["topic", "create"])
    with pytest.raises(ConfigError, match="--ports"):
        parse(["serve", "--ports", "7"])


def typed_lines(block: Block) -> Iterator[str]:
    """Lines that a reader types: those after a prompt, or all of a block without output."""
    if block.language not in SHELL_LANGUAGES:
        return
    lines = block.code.replace("\\\n", " ").splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    yield from prompted or [line for line in lines if re.match(r"(penstock [a-z-]+ |make )", line)]


def penstock_commands(line: str) -> Iterator[list[str]]:
    """Arguments of each `penstock` of a line, which may be a pipe or a loop."""
    quoted_operators_away = QUOTED.sub(lambda quoted: re.sub(r"[();<>|&]", "_", quoted[0]), line)
    lexer = shlex.shlex(quoted_operators_away, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("();<>|&"):
            words.append(word)
        elif set(word) & set("<>"):
            words.append(">")
        else:
            starts = [number for number, name in enumerate(words) if Path(name).name == "penstock"]
            if starts:
                arguments = words[starts[0] + 1 :]
                yield arguments[: arguments.index(">")] if ">" in arguments else arguments
            words = []


def parse(arguments: list[str]) -> None:
    """Raise unless a command takes these arguments. Values are not looked at: files need not exist."""
    if arguments[:1] in (["serve"], ["check-config"]):
        serve_parser(arguments[0], "", ()).parse_args(arguments[1:])
        return
    command = typer.main.get_command(app)
    context = typer.Context(command)
    while isinstance(command, TyperGroup) and arguments and not arguments[0].startswith("-"):
        found = command.get_command(context, arguments[0])
        assert found is not None, f"there is no command {arguments[0]}"
        command, arguments = found, arguments[1:]
        context = typer.Context(command, parent=context)
    values, superfluous, _ = command.make_parser(context).parse_args(arguments)
    assert superfluous == []
    required = {option.name for option in command.params if option.required}
    missing = required - {name for name, value in values.items() if value is not None}
    assert missing == set() or values.get("help"), f"missing: {missing}"
