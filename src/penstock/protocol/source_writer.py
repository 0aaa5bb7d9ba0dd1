"""Python source under construction, and the values its names stand for.

Decoders and encoders are written as text, line by line, then compiled once. Values that the text
needs (a bound `struct` method, a message class, a default) are given a name in its namespace.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct as Layout


class Source:
    def __init__(self) -> None:
        self.namespace: dict[str, object] = {}
        self._lines: list[str] = []
        self._indent = 0
        self._variables = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """What is written inside is indented below `header`."""
        self.line(header)
        self._indent += 1
        yield
        self._indent -= 1

    def variable(self, stem: str) -> str:
        """A local name that nothing else uses."""
        self._variables += 1
        return f"{stem}_{self._variables}"

    def bind(self, name: str, value: object) -> str:
        """Makes `value` known to the text under `name`, or under a name made from it if that is taken."""
        candidate, attempt = name, 0
        while candidate in self.namespace:
            if self.namespace[candidate] is value:
                return candidate
            attempt += 1
            candidate = f"{name}_{attempt}"
        self.namespace[candidate] = value
        return candidate

    def unpacker(self, formats: str) -> tuple[str, int]:
        """The name of a function that reads this big-endian layout, and how many bytes it reads."""
        layout = Layout(f">{formats}")
        name = f"unpack_{formats.replace('?', 'o')}"
        self.namespace.setdefault(name, layout.unpack_from)
        return name, layout.size

    def packer(self, formats: str) -> str:
        """The name of a function that makes the bytes of this big-endian layout."""
        name = f"pack_{formats.replace('?', 'o')}"
        self.namespace.setdefault(name, Layout(f">{formats}").pack)
        return name

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"
