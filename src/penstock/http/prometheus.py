"""The Prometheus text format, version 0.0.4: the lines that describe a metric, then its series.

    # HELP penstock_connections Clients that are connected.
    # TYPE penstock_connections gauge
    penstock_connections 3

Rule: values are read while the text is rendered, so metrics cost nothing between scrapes.
"""

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

GAUGE: Final = "gauge"
COUNTER: Final = "counter"

SampleValue = int | float
_IN_LABELS: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NOT_FINITE: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class Sample(NamedTuple):
    labels: tuple[str, ...]
    """Label values, in the order of the metric's label names."""
    value: SampleValue


class Metric(NamedTuple):
    name: str
    kind: str
    help: str
    label_names: tuple[str, ...]
    series: Iterable[Sample]


def gauge(name: str, help_text: str, value: SampleValue) -> Metric:
    return Metric(name, GAUGE, help_text, (), (Sample((), value),))


def counter(name: str, help_text: str, value: SampleValue) -> Metric:
    return Metric(name, COUNTER, help_text, (), (Sample((), value),))


def lines(metrics: Iterable[Metric]) -> Iterator[str]:
    """Render one line or header at a time, each with its newline, so that the caller can pause."""
    for name, kind, help_text, label_names, series in metrics:
        yield f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
        for labels, value in series:
            yield f"{name}{_labels(label_names, labels)} {_number(value)}\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = zip(names, values, strict=True)
    return "{" + ",".join(f'{name}="{value.translate(_IN_LABELS)}"' for name, value in pairs) + "}"


def _number(value: SampleValue) -> str:
    if isinstance(value, int):
        return str(value)
    return repr(value) if isfinite(value) else _NOT_FINITE[str(value)]
