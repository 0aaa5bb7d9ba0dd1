"""Hooks of MkDocs, which builds the site of `make docs` (`mkdocs.yml`).

Rule 1: the site has the folders of the repository, so that a link between two pages is the same in the site
        and on a git host, and no page exists twice.
Rule 2: diagrams become pictures when the site is built. A browser loads nothing from anywhere else.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.documents import ROOT, links, pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All pages of the repository, and the files to which they link, instead of those below `docs/` alone."""
    for file in list(files.documentation_pages()):
        files.remove(file)
    for path in [*pages(), *sorted(set(_linked_files()))]:
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def _linked_files() -> Iterator[Path]:
    for page in pages():
        for link in links(page.read_text()):
            target = (page.parent / link.path).resolve()
            if link.path and target.is_file() and target.suffix != ".md":
                yield target


def diagram(source: str, *_: Any, **__: Any) -> str:
    """HTML of a Mermaid diagram."""
    svg: str = mermaidx.render(source, theme="neutral").svg()
    # Its styles begin with its id: two diagrams of one page need two ids.
    svg = svg.replace("my-svg", f"diagram-{zlib.crc32(source.encode()):08x}")
    return f'<div class="diagram">{svg}</div>'
