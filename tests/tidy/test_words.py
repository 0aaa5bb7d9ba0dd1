"""One word for one thing: names given up for Kafka's words do not come back, in code, strings or pages.

The glossary in ARCHITECTURE.md has the words that are used instead.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
CODE = sorted(
    path
    for folder in ("src", "tests", "tools", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)
)
# The changelog names what there was when a line was written.
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")} - {ROOT / "CHANGELOG.md"}
)
INSTEAD = {
    "About": "MemberMetadata",
    "Asked": "FetchParams, or a name for what is requested",
    "Asking": "Caller, or a name for the request",
    "BeginningAnew": "FullTruncation",
    "Book": "GroupStore",
    "CatchingUp": "ReadBarrier",
    "Changing": "MetadataChange",
    "ChildDied": "ChildProcessEnded",
    "ClusterOptions": "LocalClusterOptions",
    "CommitLog": "TableCommitLog",
    "Controlling": "ControllerLoop",
    "Dirt": "LogToClean",
    "Doubts": "LeadershipCheck",
    "Excuse": "FallbackHttpServer",
    "FetchRepeats": "FetchRequestCache",
    "Gathered": "FetchResult",
    "IndexShelf": "IndexCache",
    "Inspection": "DeepValidation",
    "LakePlan": "LakeAuditInputs",
    "Later": "DeferredReply",
    "Means": "a name that ends in Dependencies",
    "NodeLog": "RunEndingLog",
    "Patience": "CallDeadline",
    "Pauses": "Backoff",
    "Peers": "FailureDetector",
    "PendingIsrChange": "IsrProposal",
    "Place": "ClusterMember, or a position",
    "Planner": "StreamPlanner",
    "QueryNameAddress": "QueryNameReceiverAddress",
    "RebalanceHistory": "RebalanceStatistics",
    "Repeats": "ProduceRequestCache",
    "Settled": "GroupTransition",
    "Sightings": "RevisionWaiter",
    "StoreAway": "StoreUnavailable",
    "Surroundings": "GroupContext",
    "Told": "a name for the message",
    "TopicEntry": "AssignedTopic",
    "Trouble": "a name that ends in Failure or Error",
    "Troubles": "CoordinatorErrors",
    "Turns": "KeyedJobQueue",
    "UnreplicatedAppends": "UnacknowledgedAppends",
    "Wanted": "FetchTarget, or a name for what is requested",
    "Way": "InterBrokerLink",
    "Witnesses": "PeerLeaseCheck",
    "World": "Environment",
    "at_end": "empty_reply",
    "begin_anew": "replace_damaged",
    "begin_recopy": "begin_replacement",
    "births": "new_partition_files",
    "burden": "held_byte_seconds",
    "check_records": "check_record_contents",
    "check_source": "prepare_extract",
    "does_join_grow": "join_needs_memory",
    "doomed": "pending_deletion",
    "ensure_java": "set_java_home",
    "event_counts": "fault_counts",
    "fetch_topic_ids": "look_up_topic_ids",
    "insist": "retry",
    "isr_min": "min_isr",
    "local_waits": "own_end_waits",
    "mailbox": "query_name_channel",
    "memory_cost": "held_byte_seconds",
    "metadata_away": "metadata_store_unavailable",
    "open_sync_descriptors": "reserve_sync_descriptors",
    "parting_point": "divergence_offset",
    "plan_lake": "gather_lake_inputs",
    "postbox": "query_name_channel, or a receiver",
    "propose_by_halves": "commit_by_halves",
    "read_varints": "read_varint_at_each",
    "register_broker": "register_standalone",
    "shipped_source": "code_carrying_data_source",
    "store_away": "store_unavailable",
    "too_few": "min_isr_error",
    "topics_deleted": "schedule_expiry_scan",
}


# A retired name of one word is also a word of plain sentences. In a string only the others are certain to be
# names: of log events, metrics and JSON fields, which may have more words around them.
NAMES_OF_SEVERAL_WORDS = tuple(name for name in INSTEAD if re.search("[a-z](_|[A-Z])", name))


def test_retired_names_do_not_come_back() -> None:
    found = {path: retired_names(path.read_text()) for path in CODE}
    for path, names in found.items():
        if not path.is_relative_to(SOURCE):
            names.pop("World", None)  # a test may call the surroundings that it makes up a world
    assert {str(path.relative_to(ROOT)): names for path, names in found.items() if names} == {}


def retired_names(source: str) -> dict[str, str]:
    """Retired names of a file, each with what to write instead."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    retired = {token.string for token in tokens if token.type == tokenize.NAME} & INSTEAD.keys()
    for _, text in prose_of(source):
        retired.update(names_in(text))
    return {name: INSTEAD[name] for name in sorted(retired)}


def test_retired_names_in_code_are_found() -> None:
    assert retired_names("class Doubts(World):  # doomed\n    pass\n").keys() == {"Doubts", "World"}


def names_in(text: str) -> set[str]:
    """Retired names in a string or a comment, also as a part of a longer name."""
    return {name for name in NAMES_OF_SEVERAL_WORDS if re.search(rf"(?<![a-z]){name}(?![a-z])", text)}


def test_retired_names_in_a_string_are_found() -> None:
    assert names_in("broker.store_away") == names_in("penstock_metadata_store_away_seconds") == {"store_away"}
    assert names_in("at_ending, Later, The world") == set()


SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
IDENTIFIER = re.compile(r"([A-Za-z_]\w*)(?:\.\w+)*(?:\(.*\))?")
PYTHON_EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_no_retired_name(page: Path) -> None:
    retired = identifiers_in(page.read_text()) & INSTEAD.keys()
    assert not retired, {name: INSTEAD[name] for name in retired}


def identifiers_in(page: str) -> set[str]:
    """First names of spans like `Name`, `Name.method` and `Name(...)`, and the names called in examples."""
    spans = (IDENTIFIER.fullmatch(span) for span in SPAN.findall(page))
    called = (re.findall(r"\b([A-Za-z_]\w*)\(", example) for example in PYTHON_EXAMPLE.findall(page))
    return {span[1] for span in spans if span}.union(*called)


def test_retired_names_in_a_page_are_found() -> None:
    text = "`World`, `Place.give_up`, `Later(abandon)`; `No Way`, Way.\n"
    page = f"{text}```python\nrun(Means())\n```\n```\nTold()\n```\n"
    assert identifiers_in(page) == {"World", "Place", "Later", "run", "Means"}


VAGUE = re.compile(r"\b(whoever|somebody|nobody|anybody|everybody|the one who|those who)\b", re.IGNORECASE)


def test_prose_names_its_subject() -> None:
    """Comments and strings name the leader, the client or the store."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {vague[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in prose_of(path.read_text())
        if (vague := VAGUE.search(text)) is not None
    ]
    assert found == [], "name who is meant"


def test_no_docstring_begins_with_of() -> None:
    """ "Of one leader." has no head: "Fetch state of one leader." has one."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in CODE
        for line, text in prose_of(path.read_text())
        if text.startswith("Of ")
    ]
    assert found == [], "begin with a noun or a verb"


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """String literals and comments, with their lines: docstrings, errors, help, names of log events."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_vague_prose_is_found() -> None:
    source = 'def f(x):\n    """Of one leader."""\n    raise E(f"nobody leads {x}")  # whoever asks\n'
    found = [text for _, text in prose_of(source)]
    assert found == ["Of one leader.", "nobody leads ", "# whoever asks"]
    assert [VAGUE.search(text) is not None for text in found] == [False, True, True]
