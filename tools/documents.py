"""The Markdown pages of this repository: their headings, links and code blocks.

Tests check the pages with it (`tests/tidy/test_pages.py`), and the site is built with it
(`tools/site_hooks.py`), so that an anchor means the same to both.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("docs", "deploy", "examples")
FENCE: Final = re.compile(r"^( *)(`{3,})([\w+-]*)[^\n`]*\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
CODE_SPAN: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
HEADING: Final = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
INLINE_LINK: Final = re.compile(r"\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
REFERENCE: Final = re.compile(r"^ {0,3}\[[^\]]+\]: +(\S+)", re.MULTILINE)
LINK_TEXT: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Link(NamedTuple):
    line: int
    path: str
    """Relative to the folder of the page; empty for a link within the page."""
    anchor: str


class Block(NamedTuple):
    """A fenced block of code."""

    line: int
    indent: int
    language: str
    code: str


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        indent, _, language, code = found.groups()
        code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
        yield Block(_line(text, found.start()), len(indent), language, code)


def anchors(text: str) -> set[str]:
    return {slug(heading[1]) for heading in HEADING.finditer(without_blocks(text))}


def slug(heading: str, separator: str = "-") -> str:
    """The anchor that GitHub gives a heading. MkDocs calls this function too (`mkdocs.yml`)."""
    words = LINK_TEXT.sub(r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", separator)


def links(text: str) -> Iterator[Link]:
    """Links to files and headings of this repository."""
    prose = CODE_SPAN.sub(_blank, without_blocks(text))
    for pattern in (INLINE_LINK, REFERENCE):
        for found in pattern.finditer(prose):
            if not re.match(r"[a-z]+:", found[1]):
                path, _, anchor = found[1].partition("#")
                yield Link(_line(prose, found.start()), path, anchor)


def without_blocks(text: str) -> str:
    return FENCE.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    """As many lines as before, so that line numbers stay right."""
    return "\n" * found[0].count("\n")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
