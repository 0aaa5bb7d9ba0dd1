"""What samples of a comparison come to, and what the three reports show of them."""

import json
import re
from html.parser import HTMLParser

import pytest

from benchmarks.figures import Better
from benchmarks.peers.report.page import page
from benchmarks.peers.report.plots import plot
from benchmarks.peers.report.table import table
from benchmarks.peers.results import Missing, Run, Sample, rows_of

ORDER = ["penstock", "kafka", "redis-always"]
WITHOUT_END = {"meta", "rect", "line", "br"}


def sample(contender: str, value: float, *, figure: str = "produced", limited_by: str = "") -> Sample:
    return Sample(
        question="batched",
        figure=figure,
        unit="MB/s",
        contender=contender,
        value=value,
        better=Better.HIGHER,
        limited_by=limited_by,
    )


def described(name: str, acknowledged: str) -> dict[str, object]:
    return {
        "name": name,
        "peer": name.partition("-")[0],
        "version": "1.2.3",
        "acknowledged": acknowledged,
        "settings": ["appendfsync <always>"],
        "why": "the reason & more",
        "three_replicas": "none",
    }


@pytest.fixture
def run() -> Run:
    samples = [sample("kafka", 40.0), *(sample("penstock", value) for value in (90.0, 100.0, 110.0))]
    return Run(
        machine={"cores": 2, "kernel": "6.1 <odd>"},
        contenders=(described("penstock", "on disk"), described("kafka", "in the page cache")),
        questions={"batched": "how much goes through?"},
        rows=tuple(rows_of(samples, ORDER)),
        missing=(
            Missing("redis-always", "", "redis-server not found: install <it>"),
            Missing("kafka", "batched", "FAILED: no reply"),
        ),
        took_s=120.0,
    )


def test_a_value_is_the_median_of_its_repetitions_with_its_spread() -> None:
    (row,) = rows_of([sample("kafka", value) for value in (3.0, 1.0, 7.0)], ORDER)
    (cell,) = row.cells
    assert (cell.value, cell.lowest, cell.highest) == (3.0, 1.0, 7.0)


def test_contenders_stand_in_the_order_given_not_in_that_of_the_run() -> None:
    (row,) = rows_of([sample("redis-always", 1), sample("penstock", 2), sample("kafka", 3)], ORDER)
    assert [cell.contender for cell in row.cells] == ORDER


def test_what_limited_a_figure_is_that_of_the_sample_nearest_to_the_median() -> None:
    samples = [sample("kafka", value, limited_by=str(value)) for value in (1.0, 5.0, 100.0)]
    assert rows_of(samples, ORDER)[0].cells[0].limited_by == "5.0"


def test_figures_of_one_name_and_other_units_are_kept_apart() -> None:
    other = Sample(question="batched", figure="produced", unit="records/s", contender="kafka", value=1)
    assert len(rows_of([sample("kafka", 1), other], ORDER)) == 2


def test_the_table_shows_what_an_acknowledgement_means_beside_each_figure(run: Run) -> None:
    lines = table(run).splitlines()
    (kafka,) = [line for line in lines if line.startswith("    kafka") and "40.0" in line]
    assert "in the page cache" in kafka
    (ours,) = [line for line in lines if line.startswith("    penstock") and "90.0 to 110 (3)" in line]
    assert "on disk" in ours


def test_what_is_missing_stands_in_the_table_the_json_and_the_page(run: Run) -> None:
    for report in (table(run), json.dumps(run.as_json()), page(run)):
        assert "redis-always" in report
        assert "redis-server not found" in report
        assert "FAILED: no reply" in report


def test_the_json_has_every_sample(run: Run) -> None:
    kept = json.loads(json.dumps(run.as_json()))
    (figure,) = kept["figures"]
    assert figure["contenders"]["penstock"]["samples"] == [90.0, 100.0, 110.0]
    assert figure["contenders"]["kafka"]["median"] == 40.0
    assert kept["contenders"][0]["settings"] == ["appendfsync <always>"]


class Outline(HTMLParser):
    """Elements that are open, the text, and what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in WITHOUT_END:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "xlink:href") or tag in ("script", "link", "iframe"):
                self.loads.append(f"{tag} {name}={value}")
            if name == "href":
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in WITHOUT_END:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    return found


def test_the_page_is_whole_and_loads_nothing(run: Run) -> None:
    text = page(run)
    found = outline(text)
    assert found.open == []
    assert found.loads == []
    assert re.findall(r"url\(|@import|https?:", text) == []
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)


def test_the_page_plots_each_figure_with_a_bar_for_each_contender(run: Run) -> None:
    found = outline(page(run))
    assert found.elements.count("svg") == len(run.rows)
    assert found.elements.count("rect") == 2
    assert "appendfsync <always>" in found.text
    assert "6.1 <odd>" in found.text


def test_a_bar_is_as_long_as_its_share_of_the_longest_spread() -> None:
    (row,) = rows_of([sample("penstock", 100.0), sample("kafka", 25.0)], ORDER)
    drawn = plot(row, {"penstock": ("penstock", True), "kafka": ("kafka", False)})
    ours, kafka = (float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn))
    assert kafka == pytest.approx(ours / 4)
    assert re.findall(r'fill-opacity="([\d.]+)"', drawn) == ["1", "0.35"]


def test_a_figure_of_nothing_but_zeros_can_be_plotted() -> None:
    (row,) = rows_of([sample("penstock", 0.0)], ORDER)
    assert 'width="0.0"' in plot(row, {})
