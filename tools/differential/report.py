"""Report of a run: every unexpected difference, then a table with one row per scenario."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tools.differential.compare import Plain
from tools.differential.gaps import Gap
from tools.differential.run import Case

_VALUE_CHARACTERS_MAX = 160


def difference_lines(case: Case) -> list[str]:
    """Unexpected differences of a case: the path of the field and both values."""
    lines = [f"{case.name}"]
    for difference in case.unexpected:
        lines += [
            f"    {difference.path or '(whole answer)'}",
            f"        kafka     {_shown(difference.kafka)}",
            f"        penstock  {_shown(difference.penstock)}",
        ]
    return lines


def table(cases: Sequence[Case]) -> list[str]:
    """Table of scenarios: number of cases, number of equal ones, and the gaps that cover the others."""
    names = list(dict.fromkeys(case.name.split("/")[0] for case in cases))
    width = max((len(name) for name in names), default=0)
    lines = [f"{'scenario':<{width}}  cases  equal  intended  unexpected  gaps"]
    for name in names:
        of_scenario = [case for case in cases if case.name.split("/")[0] == name]
        lines.append(_row(f"{name:<{width}}", of_scenario))
    lines.append(_row(f"{'total':<{width}}", cases))
    return lines


def gaps_without_effect(cases: Iterable[Case], gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps that covered no difference: the difference is gone, or the pattern is wrong."""
    used = {gap for case in cases for gap, _ in case.intended}
    return [gap for gap in gaps if gap not in used]


def _row(label: str, cases: Sequence[Case]) -> str:
    unexpected = sum(bool(case.unexpected) for case in cases)
    intended = sum(bool(case.intended) and not case.unexpected for case in cases)
    used = Counter(gap.id for case in cases for gap, _ in case.intended)
    equal = len(cases) - unexpected - intended
    ids = " ".join(sorted(used, key=lambda name: (len(name), name)))
    return f"{label}  {len(cases):>5}  {equal:>5}  {intended:>8}  {unexpected:>10}  {ids}".rstrip()


def _shown(value: Plain) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[: _VALUE_CHARACTERS_MAX - 3] + "..."
