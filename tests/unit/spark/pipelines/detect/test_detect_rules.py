"""A file of rules: read as it is meant, or refused with a sentence that says where and what."""

import tomllib
from pathlib import Path

import pytest

from penstock.errors import CommandFailed
from penstock.spark.pipelines.detect.detect import check_columns
from penstock.spark.pipelines.detect.rules import DetectRules, RuleKind, StreamSpec, parse_rules, read_rules

EXAMPLE = Path(__file__).parents[5] / "examples" / "detect" / "payments.toml"
RULE = 'name = "fast"\nkind = "count"\nwithin = "1m"\nat_least = 5\n'
STREAM = '[stream]\nschema = "card string, amount double"\n'


def rules(text: str) -> DetectRules:
    return parse_rules(tomllib.loads(text), Path("rules.toml"))


def test_the_example_is_read_as_it_is_meant() -> None:
    found = read_rules(EXAMPLE)
    assert (found.stream.format, found.stream.time, found.stream.lateness_ms) == ("json", "at", 600_000)
    assert [rule.kind for rule in found.rules] == list(RuleKind)
    assert [rule.span_ms for rule in found.rules] == [60_000, 600_000, 3_600_000, 300_000]
    assert [rule.at_least for rule in found.rules] == [5, 5000, 3, 8]
    assert found.rules[3].where == "amount < 2"
    check_columns(found)


def test_without_a_schema_rules_are_about_keys_and_times_of_records() -> None:
    found = rules("[[rule]]\n" + RULE)
    assert found.stream == StreamSpec()
    assert found.rules[0].key == "key"
    check_columns(found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "rules.toml has no rules: begin each with [[rule]]"),
        ("[rule]\n" + RULE, "rules.toml has no rules"),
        (f"[[rule]]\n{RULE}[[rule]]\n{RULE}", "two rules named fast"),
        ("[[rule]]\nkind = 'count'", "rules.toml, rule 1: name is missing"),
        ("[[rule]]\nname = 'a'\nkind = 'often'", "rule a: kind is 'often': give one of count, sum,"),
        (
            "[[rule]]\n" + RULE.replace("within", "whithin"),
            "rule fast: whithin is unknown here: did you mean",
        ),
        (
            "[[rule]]\n" + RULE.replace('"1m"', '"soon"'),
            "rule fast: within is 'soon': give a time such as 90s",
        ),
        ("[[rule]]\n" + RULE.replace('within = "1m"\n', ""), "rule fast: within is missing"),
        ("[[rule]]\n" + RULE.replace("5", "5.5"), "at_least is 5.5: give a whole number above 0"),
        ("[[rule]]\n" + RULE.replace("5", "0"), "at_least is 0: give a whole number above 0"),
        ("[[rule]]\n" + RULE.replace("5", "true"), "at_least is True"),
        ("[[rule]]\n" + RULE.replace("5", "9" * 400), "give a whole number above 0"),
        ("[[rule]]\n" + RULE.replace("5", "5000"), "at_least is 5000: of one key 2000 events are remembered"),
        ("[[rule]]\n" + RULE.replace("count", "sum"), "rule fast: field is missing"),
        ("[[rule]]\n" + RULE + "field = 'amount'\n", "rule fast: field is unknown here"),
        ("[[rule]]\n" + RULE.replace("count", "session"), "rule fast: within is unknown here"),
        ("[[rule]]\n" + RULE + "key = 7\n", "key is 7: give text, in quotes"),
        (
            "[stream]\nlate = '1m'\n[[rule]]\n" + RULE,
            "[stream]: late is unknown here: did you mean lateness?",
        ),
        ("[stream]\nformat = 'avro'\n[[rule]]\n" + RULE, "format goes together with schema"),
        ("stream = 5\n[[rule]]\n" + RULE, "[stream] must be a table"),
        ("[streams]\n[[rule]]\n" + RULE, "streams is unknown here: did you mean stream?"),
    ],
)
def test_what_is_wrong_is_named(text: str, sentence: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        rules(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            STREAM + "[[rule]]\n" + RULE + "key = 'carrd'\n",
            "rule fast, key: there is no column carrd: did you",
        ),
        (STREAM + "time = 'when'\n[[rule]]\n" + RULE, r"[stream] time: there is no column when"),
        ("[[rule]]\n" + RULE + "key = 'card'\n", "[stream] schema says which columns values have"),
        (
            STREAM + "[[rule]]\n" + RULE.replace("count", "sum") + "field = 'card'\n",
            "rule fast, field: column card is string; kind sum needs numbers",
        ),
        ("[stream]\nschema = 'card strin'\n[[rule]]\n" + RULE, "[stream] schema: "),
        ("[stream]\nschema = 'nowhere.json'\n[[rule]]\n" + RULE, "this file cannot be read"),
    ],
)
def test_a_column_that_is_not_there_or_does_not_fit_is_named(text: str, sentence: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        check_columns(rules(text))
    assert sentence in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot be read: No such file"):
        read_rules(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[[rule]\n")
    with pytest.raises(CommandFailed, match=r"bad.toml are no TOML: .*line 1"):
        read_rules(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(CommandFailed, match="cannot be read"):
        read_rules(tmp_path / "latin.toml")
