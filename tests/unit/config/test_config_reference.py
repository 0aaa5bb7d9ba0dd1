"""The page about settings says what the declarations say."""

from pathlib import Path

from penstock.config.broker_settings import BROKER_SETTINGS
from penstock.config.kafka_differences import KAFKA_DIFFERENCES
from penstock.config.reference import render
from penstock.config.sources import load
from penstock.config.topic_settings import TOPIC_SETTINGS

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m penstock.config.reference > docs/configuration.md"


def test_the_page_has_every_setting_and_every_difference() -> None:
    page = render()
    for name in (*TOPIC_SETTINGS, *BROKER_SETTINGS):
        assert f"\n| `{name}` | " in page
    differing = page.partition("## Where defaults differ")[2].partition("\n## ")[0]
    for name, difference in KAFKA_DIFFERENCES.items():
        assert f"| `{name}` | {difference.kafka} | " in differing


def test_the_file_shown_on_the_page_can_be_loaded() -> None:
    example = render().partition("```toml\n")[2].partition("```")[0]
    broker = load(file=example.encode())
    assert [listener.advertised_host for listener in broker.listeners] == ["127.0.0.1", "broker.example"]
    assert broker.topic_defaults.retention_ms == 86_400_000


def test_tables_have_as_many_cells_as_headings() -> None:
    tables = [block.split("\n") for block in render().split("\n\n") if block.startswith("|")]
    assert len(tables) > 5
    for heading, *rows in tables:
        assert {row.count("|") for row in rows} == {heading.count("|")}, heading
