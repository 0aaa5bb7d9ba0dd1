"""Which Java Spark is given."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from penstock.spark.runtime.jvm import NoJava, find_java_home, java_version, set_java_home

ECHO = '#!/bin/sh\nfor each do printf "%s\\n" "$each"; done\n'


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def a_java(home: Path, version: str) -> Path:
    return program(home / "bin" / "java", f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def none() -> Path | None:
    return None


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.12", 17), ("1.8.0_402", 8), ("25", 25), ("11.0.2", 11), ("21-ea", 21)]
)
def test_a_java_says_its_version(tmp_path: Path, said: str, version: int) -> None:
    assert java_version(a_java(tmp_path, said)) == version


def test_what_does_not_answer_like_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "missing") is None
    assert java_version(program(tmp_path / "silent", "#!/bin/sh\nexit 1\n")) is None


def test_java_home_comes_first(tmp_path: Path) -> None:
    a_java(tmp_path / "home", "21.0.1")
    a_java(tmp_path / "other", "17.0.1")
    given = environment(tmp_path, JAVA_HOME=str(tmp_path / "home"), PATH=str(tmp_path / "other" / "bin"))
    assert find_java_home(given) == tmp_path / "home"


def test_an_old_java_home_gives_way_to_a_newer_one_on_the_path(tmp_path: Path) -> None:
    a_java(tmp_path / "old", "11.0.2")
    a_java(tmp_path / "new", "17.0.1")
    given = environment(tmp_path, JAVA_HOME=str(tmp_path / "old"), PATH=str(tmp_path / "new" / "bin"))
    assert find_java_home(given) == tmp_path / "new"


def test_the_home_of_a_linked_java_is_where_it_really_is(tmp_path: Path) -> None:
    java = a_java(tmp_path / "jdk-17", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    assert find_java_home(environment(tmp_path, PATH=str(tmp_path / "bin"))) == tmp_path / "jdk-17"


def test_without_any_java_the_message_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    a_java(tmp_path / "old", "1.8.0")
    given = environment(tmp_path, JAVA_HOME=str(tmp_path / "old"))
    with pytest.raises(NoJava, match=r"old/bin/java is Java 8.*pip install 'penstock\[spark\]'"):
        find_java_home(given, bundled=none)


def test_the_wrapper_leaves_out_one_argument_and_keeps_every_other(tmp_path: Path) -> None:
    real = program(tmp_path / "it's here" / "java", ECHO)
    home = find_java_home(environment(tmp_path), bundled=lambda: real)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-cp\na b\n\n$HOME\n--add-modules=other\n"


def test_a_wrapper_that_was_damaged_is_written_again(tmp_path: Path) -> None:
    real = program(tmp_path / "java", ECHO)
    wrapper = find_java_home(environment(tmp_path), bundled=lambda: real) / "bin" / "java"
    whole = wrapper.read_bytes()
    wrapper.write_bytes(whole[:10])
    find_java_home(environment(tmp_path), bundled=lambda: real)
    assert wrapper.read_bytes() == whole
    assert stat.S_IMODE(wrapper.stat().st_mode) == 0o755
    assert os.listdir(wrapper.parent) == ["java"]


def test_two_environments_with_a_java_each_do_not_share_a_wrapper(tmp_path: Path) -> None:
    first, second = program(tmp_path / "1" / "java", ECHO), program(tmp_path / "2" / "java", ECHO)
    given = environment(tmp_path)
    assert find_java_home(given, bundled=lambda: first) != find_java_home(given, bundled=lambda: second)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(NoJava, match=r"cache/penstock/java-.*XDG_CACHE_HOME"):
        find_java_home(environment(tmp_path), bundled=lambda: tmp_path / "java")


def test_java_home_is_set_for_spark(tmp_path: Path) -> None:
    a_java(tmp_path / "jdk", "17.0.1")
    given = environment(tmp_path, PATH=str(tmp_path / "jdk" / "bin"))
    assert set_java_home(given) == tmp_path / "jdk"
    assert given["JAVA_HOME"] == str(tmp_path / "jdk")
