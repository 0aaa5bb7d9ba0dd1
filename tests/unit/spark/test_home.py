"""Where Spark starts from, and for whom it is another folder than the one that pip made."""

import sys
from pathlib import Path

import pytest

from penstock.spark.home import linked_home, quick_home


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    home = tmp_path / "site-packages" / "pyspark"
    for part in ("bin", "jars", "python/lib"):
        (home / part).mkdir(parents=True)
    (home / "python" / "lib" / "pyspark.zip").touch()
    (home / "jars" / "spark.jar").touch()
    return home


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def test_all_is_there_but_the_zip_file(installed: Path, tmp_path: Path) -> None:
    home = linked_home(installed, tmp_path / "cache")
    assert (home / "jars" / "spark.jar").exists()
    assert (home / "bin").is_dir()
    assert not (home / "python").exists()


def test_it_is_made_once_and_follows_what_is_installed(installed: Path, tmp_path: Path) -> None:
    first = linked_home(installed, tmp_path / "cache")
    (installed / "conf").mkdir()
    (installed / "bin").rmdir()
    assert linked_home(installed, tmp_path / "cache") == first
    assert (first / "conf").is_dir()
    assert not (first / "bin").is_symlink()
    assert linked_home(installed.parent, tmp_path / "cache") != first


def test_the_variable_is_set_for_the_block_alone(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    with quick_home("local[2]", variables):
        assert (Path(variables["SPARK_HOME"]) / "jars").is_dir()
    assert "SPARK_HOME" not in variables


@pytest.mark.parametrize(
    ("master", "more"),
    [
        ("spark://here:7077", {}),
        ("local[2]", {"SPARK_HOME": "mine"}),
        ("local[2]", {"PYSPARK_PYTHON": "another"}),
    ],
)
def test_others_keep_what_they_have(master: str, more: dict[str, str], tmp_path: Path) -> None:
    variables = environment(tmp_path, **more)
    with quick_home(master, variables):
        assert variables.get("SPARK_HOME") == more.get("SPARK_HOME")
    assert variables.get("SPARK_HOME") == more.get("SPARK_HOME")


def test_this_python_may_be_named(tmp_path: Path) -> None:
    variables = environment(tmp_path, PYSPARK_PYTHON=sys.executable)
    with quick_home("local[2]", variables):
        assert "SPARK_HOME" in variables


def test_where_nothing_can_be_written_spark_starts_from_its_own(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    variables = environment(tmp_path)
    with quick_home("local[2]", variables):
        assert "SPARK_HOME" not in variables
