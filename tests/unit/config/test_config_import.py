"""Loading settings is a part of every start, so it loads nothing it does not need."""

import subprocess
import sys

# Each of these costs more to load than all declarations together.
HEAVY = {"asyncio", "dataclasses", "difflib", "inspect", "ipaddress", "msgspec", "tomllib"}


def test_settings_load_without_anything_heavy() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "import penstock.config.sources, penstock.config.describe, penstock.config.alter\n"
        "penstock.config.sources.load()\n"
        "print(*(set(sys.modules) - before))"
    )
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "penstock.config.sources" in loaded
    assert not HEAVY.intersection(loaded)
