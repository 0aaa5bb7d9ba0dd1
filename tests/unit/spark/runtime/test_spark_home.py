"""Where Spark starts from, and for whom it is another folder than the one that pip made."""

import shutil
import sys
from pathlib import Path

import pytest

from penstock.spark.runtime.spark_home import linked_spark_home, make_linked_home


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    home = tmp_path / "site-packages" / "pyspark"
    for part in ("bin", "jars", "python/lib"):
        (home / part).mkdir(parents=True)
    (home / "python" / "lib" / "pyspark.zip").touch()
    (home / "jars" / "spark.jar").touch()
    (home / "bin" / "spark-submit").touch()
    return home


def linked(installed: Path, tmp_path: Path) -> Path:
    home = make_linked_home(installed, tmp_path / "cache")
    assert home is not None
    return home


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def test_all_is_there_but_the_zip_file(installed: Path, tmp_path: Path) -> None:
    home = linked(installed, tmp_path)
    assert (home / "jars" / "spark.jar").exists()
    assert (home / "bin").is_dir()
    assert not (home / "python").exists()


def test_it_is_made_once_and_follows_what_is_installed(installed: Path, tmp_path: Path) -> None:
    (installed / "conf").mkdir()
    first = linked(installed, tmp_path)
    assert (first / "conf").is_dir()
    (installed / "conf").rmdir()
    assert linked(installed, tmp_path) == first
    assert not (first / "conf").is_symlink()
    another = installed.with_name("another")
    shutil.copytree(installed, another)
    assert linked(another, tmp_path) != first


def test_what_is_no_spark_or_another_one_is_not_started(installed: Path, tmp_path: Path) -> None:
    home = linked(installed, tmp_path)
    # A cache that was copied with its links resolved, and is of a Spark before this one.
    (home / "jars").unlink()
    (home / "jars").mkdir()
    assert make_linked_home(installed, tmp_path / "cache") is None
    (installed / "bin" / "spark-submit").unlink()
    assert make_linked_home(installed, tmp_path / "elsewhere") is None
    shutil.rmtree(installed / "jars")
    with pytest.raises(FileNotFoundError):
        make_linked_home(installed, tmp_path / "third")


def test_the_variable_is_set_for_the_block_alone(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    with linked_spark_home("local[2]", variables):
        assert (Path(variables["SPARK_HOME"]) / "jars").is_dir()
    assert "SPARK_HOME" not in variables


@pytest.mark.parametrize(
    ("master", "more"),
    [
        ("spark://here:7077", {}),
        ("local[2]", {"SPARK_HOME": "mine"}),
        ("local[2]", {"PYSPARK_PYTHON": "another"}),
        ("local[2]", {"PYSPARK_DRIVER_PYTHON": "another"}),
    ],
)
def test_others_keep_what_they_have(master: str, more: dict[str, str], tmp_path: Path) -> None:
    variables = environment(tmp_path, **more)
    with linked_spark_home(master, variables):
        assert variables.get("SPARK_HOME") == more.get("SPARK_HOME")
    assert variables.get("SPARK_HOME") == more.get("SPARK_HOME")


def test_this_python_may_be_named(tmp_path: Path) -> None:
    variables = environment(tmp_path, PYSPARK_PYTHON=sys.executable)
    with linked_spark_home("local[2]", variables):
        assert "SPARK_HOME" in variables


def test_where_nothing_can_be_written_spark_starts_from_its_own(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    variables = environment(tmp_path)
    with linked_spark_home("local[2]", variables):
        assert "SPARK_HOME" not in variables


def test_where_the_user_has_no_home_spark_starts_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", without_home)
    variables: dict[str, str] = {}
    with linked_spark_home("local[2]", variables):
        assert "SPARK_HOME" not in variables
