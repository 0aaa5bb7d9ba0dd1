"""The text that Prometheus reads."""

from penstock.http.prometheus import GAUGE, Metric, Sample, gauge, lines


def test_a_metric_is_its_help_its_type_and_its_series() -> None:
    metric = Metric("m", GAUGE, "What it is.", ("a", "b"), [Sample(("x", "y"), 3), Sample(("z", ""), 0.5)])
    assert "".join(lines([metric, gauge("n", "Other.", 2**60)])) == (
        "# HELP m What it is.\n# TYPE m gauge\n"
        'm{a="x",b="y"} 3\nm{a="z",b=""} 0.5\n'
        "# HELP n Other.\n# TYPE n gauge\nn 1152921504606846976\n"
    )


def test_names_that_clients_choose_cannot_break_out_of_their_label() -> None:
    metric = Metric("m", GAUGE, "", ("group",), [Sample(('a"} 1\nevil 2\\',), 1)])
    assert list(lines([metric]))[1:] == ['m{group="a\\"} 1\\nevil 2\\\\"} 1\n']


def test_numbers_that_are_not_finite_are_written_as_prometheus_reads_them() -> None:
    texts = "".join(lines([gauge("m", "", value) for value in (float("inf"), float("-inf"), float("nan"))]))
    assert [line for line in texts.splitlines() if line[0] != "#"] == ["m +Inf", "m -Inf", "m NaN"]


def test_series_are_read_only_when_they_are_written() -> None:
    read: list[int] = []

    def series() -> object:
        for number in range(3):
            read.append(number)
            yield Sample((), number)

    text = lines([Metric("m", GAUGE, "", (), series())])  # type: ignore[arg-type]
    next(text)
    assert read == []
    next(text)
    assert read == [0]
