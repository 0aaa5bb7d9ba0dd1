"""Rules of the code base that a reader relies on."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from penstock.protocol.apis import ALL, APIS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
SOURCES = sorted(SOURCE.rglob("*.py"))
API_FILES = sorted(path for path in (SOURCE / "broker" / "apis").glob("*.py") if path.name != "__init__.py")
CARD = re.compile(r"(?P<name>\w+): api key (?P<key>\d+), versions? (?P<first>\d+)(?: to (?P<last>\d+))?")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", API_FILES, ids=relative)
def test_each_api_opens_with_a_card_that_tells_the_truth(path: Path) -> None:
    card = CARD.match(ast.get_docstring(ast.parse(path.read_text())) or "")
    assert card is not None, "the file opens with 'Name: api key N, versions A to B'"
    api = APIS[int(card["key"])]
    assert card["name"] == api.name
    assert (int(card["first"]), int(card["last"] or card["first"])) == api.versions


def test_each_api_has_one_file() -> None:
    keys = [CARD.match(ast.get_docstring(ast.parse(path.read_text())) or "") for path in API_FILES]
    assert sorted(int(card["key"]) for card in keys if card) == sorted(APIS)


@pytest.mark.parametrize("path", API_FILES, ids=relative)
def test_each_api_declares_beside_its_handler_what_it_serves(path: Path) -> None:
    module = importlib.import_module(f"penstock.broker.apis.{path.stem}")
    declared = [value.api for value in vars(module).values() if hasattr(value, "api")]
    card = CARD.match(module.__doc__ or "")
    assert [api.messages.key for api in declared] == [int(card["key"])] if card else []


def test_each_api_has_a_route() -> None:
    """`broker/routes.py` builds the handler of each API, once and outside of its imports."""
    routes = ast.parse((SOURCE / "broker" / "routes.py").read_text())
    built = [
        node.func.id
        for node in ast.walk(routes)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    handlers = {
        APIS[value.api.messages.key].name: name
        for path in API_FILES
        for name, value in vars(importlib.import_module(f"penstock.broker.apis.{path.stem}")).items()
        if hasattr(value, "api")
    }
    assert handlers.keys() == {api.name for api in APIS.values()}
    assert {name: built.count(name) for name in handlers.values()} == dict.fromkeys(handlers.values(), 1)


def test_each_api_of_clients_has_a_row_that_says_how_far_its_requests_grow() -> None:
    """The table is measured (`python -m tests.fuzz.test_fuzz_expansion`), so only the names are compared."""
    page = (ROOT / "docs" / "internals" / "connections.md").read_text()
    table = page.partition("| API | Factor |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\w+) \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(api.name for api in ALL)


METRIC = re.compile(r"penstock_[a-z0-9_]+")


def metrics_in_code() -> list[str]:
    """Metric names, each of which is one string literal. A name that is put together would be missed."""
    literals = [
        node.value
        for path in sorted((SOURCE / "http").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    unfinished = [text for text in literals if text.startswith("penstock_") and text.endswith("_")]
    assert unfinished == [], "write a metric's name as one literal, so that it can be searched for"
    return [text for text in literals if METRIC.fullmatch(text)]


def metrics_in_page(page: str) -> list[str]:
    """Metric names in the first column of the table under the heading Metrics."""
    section = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `penstock_")]
    return [name for row in rows for name in METRIC.findall(row.split("|")[1])]


def test_the_table_of_metrics_has_each_metric_once() -> None:
    code = metrics_in_code()
    page = metrics_in_page((ROOT / "docs" / "http.md").read_text())
    assert code, "the metrics are in http/"
    assert sorted(set(code) - set(page)) == [], "add a row to docs/http.md#metrics"
    assert sorted(set(page) - set(code)) == [], "docs/http.md#metrics names metrics that do not exist"
    assert sorted(page) == sorted(set(page))


LOCK = re.compile(r"\basyncio\.Lock\(\)")


def test_the_decision_record_names_each_lock() -> None:
    """A lock that is added or goes away changes which tasks may wait for each other."""
    page = (ROOT / "docs" / "adr" / "0012-one-owner-per-state.md").read_text()
    table = page.partition("| Lock | One at a time |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `([a-z_/]+\.py)`", table, re.MULTILINE)
    made = [path for path in SOURCES if path.is_relative_to(SOURCE) for _ in LOCK.findall(path.read_text())]
    assert sorted(named) == sorted(str(path.relative_to(SOURCE)) for path in made)
    counts = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert f"{counts[len(named)].capitalize()} of `asyncio.Lock`" in page


def test_each_file_says_what_it_is_for() -> None:
    texts = {relative(path): path.read_text() for path in SOURCES}
    silent = [name for name, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))]
    assert silent == [], "a file opens with its strategy"


def test_broad_excepts_stand_only_at_the_root_of_a_task() -> None:
    allowed = {"host/worker.py", "broker/network/connection.py", "coordinator/shard.py"}
    allowed.add("broker/storage/cleaner_worker.py")
    allowed.add("broker/replication/replica_fetchers.py")
    allowed.add("sim/run.py")  # whatever a seed raises is its result
    allowed.add("sim/interruptible_jobs.py")  # a worker's thread, as in host/worker.py
    broad = [
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        if str(path.relative_to(SOURCE)) not in allowed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]
    assert broad == [], "name what can fail"


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything and does not raise it again."""
    if handler.type is None:
        return True
    caught = handler.type.id if isinstance(handler.type, ast.Name) else ""
    return caught in ("Exception", "BaseException") and not isinstance(handler.body[-1], ast.Raise)


def test_no_two_classes_share_a_name() -> None:
    """Structs of messages are named as in Kafka's schema, where each API has names of its own."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        if not path.is_relative_to(SOURCE / "protocol" / "messages"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(relative(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_nothing_is_left_to_do() -> None:
    words = ("TODO", "FIXME", "XXX", "NotImplementedError")
    texts = {relative(path): path.read_text() for path in SOURCES}
    assert [name for name, text in texts.items() if any(word in text for word in words)] == []


def test_every_limit_is_used() -> None:
    text = (SOURCE / "limits.py").read_text()
    names = re.findall(r"^([A-Z][A-Z0-9_]+) = ", text, re.MULTILINE)
    others = "\n".join(path.read_text() for path in SOURCES if path.name != "limits.py")
    units = {"KIB", "MIB", "GIB", "SECOND_MS", "MINUTE_MS", "HOUR_MS", "DAY_MS"}
    unused = [name for name in names if name not in units and not re.search(rf"\b{name}\b", others)]
    assert unused == [], "a bound that nothing obeys is a promise that nobody keeps"


def test_the_map_of_the_code_names_every_folder_and_nothing_that_is_gone() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    folders = {f"{path.parent.relative_to(SOURCE)}/" for path in SOURCES if path.name == "__init__.py"} - {
        "./"
    }
    listed = set(re.findall(r"^\| `([a-z0-9_/]+/)` \|", page, re.MULTILINE))
    assert listed == folders
    named = re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)`", page)
    gone = [name for name in named if not any((root / name).exists() for root in (SOURCE, ROOT))]
    assert gone == []


def test_every_decision_record_is_listed() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text()
    for path in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        assert path.name in listed
