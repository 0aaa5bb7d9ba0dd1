"""Python source under construction, and the objects that its names refer to.

Decoders and encoders are written as text, line by line, then compiled once. Objects that the text refers to
(a bound `struct` method, a message class, a default) get a name in its namespace.
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
        """Indent the lines of the `with` block below `header`."""
        self.line(header)
        self._indent += 1
        yield
        self._indent -= 1

    def variable(self, stem: str) -> str:
        """Return an unused local variable name."""
        self._variables += 1
        return f"{stem}_{self._variables}"

    def bind(self, name: str, value: object) -> str:
        """Bind `value` to `name` in the namespace, or to a name derived from it if `name` is taken."""
        candidate, attempt = name, 0
        while candidate in self.namespace:
            if self.namespace[candidate] is value:
                return candidate
            attempt += 1
            candidate = f"{name}_{attempt}"
        self.namespace[candidate] = value
        return candidate

    def unpacker(self, formats: str) -> tuple[str, int]:
        """Name of a function that reads this big-endian layout, and the layout's size."""
        layout = Layout(f">{formats}")
        # `?` is a format character and not valid in a name.
        name = f"unpack_{formats.replace('?', 'o')}"
        self.namespace.setdefault(name, layout.unpack_from)
        return name, layout.size

    def packer(self, formats: str) -> str:
        """Name of a function that packs this big-endian layout."""
        name = f"pack_{formats.replace('?', 'o')}"
        self.namespace.setdefault(name, Layout(f">{formats}").pack)
        return name

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"
