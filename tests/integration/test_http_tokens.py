"""Changes over HTTP from other machines: with a token that the broker knows, and without."""

import hashlib
from pathlib import Path

import pytest

from tests.integration.broker_process import penstock, serving

SECRET = "0123456789abcdef" * 4
BEYOND_LOOPBACK = ("--kafka", "127.0.0.1:0", "--http", "0.0.0.0:0", "--insecure")


def test_a_change_from_elsewhere_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, mine = tmp_path / "tokens", tmp_path / "mine"
    tokens.write_text(f"{hashlib.sha256(SECRET.encode()).hexdigest()} operator\n")
    mine.write_text(f"{SECRET}\n")
    settings = {"http.tokens.file": tokens}
    with serving(tmp_path / "data", settings=settings, addresses=BEYOND_LOOPBACK) as broker:
        url = f"http://127.0.0.1:{broker.http.rpartition(':')[2]}"
        without = penstock("cluster", "drain", "1", "--url", url)
        assert (without.exit_code, "--token-file" in without.stderr) == (1, True), without.stderr
        allowed = penstock("cluster", "drain", "1", "--url", url, "--token-file", str(mine))
        assert "no other broker could take over" in allowed.stderr, "it came to the drain itself"
        moved = penstock("cluster", "balance", "--url", url, "--bootstrap", broker.bootstrap)
        assert "--token-file" in moved.stderr
        monkeypatch.setenv("PENSTOCK_TOKEN", SECRET)
        moved = penstock("cluster", "balance", "--url", url, "--bootstrap", broker.bootstrap)
        assert (moved.exit_code, moved.stdout) == (0, "nothing has to move\n")
        assert "by=operator" in broker.stderr
        assert SECRET not in broker.stderr
        assert penstock("cluster", "status", "--url", url).exit_code == 0


def test_without_tokens_a_listener_beyond_loopback_takes_no_change(tmp_path: Path) -> None:
    with serving(tmp_path / "data", addresses=BEYOND_LOOPBACK) as broker:
        url = f"http://127.0.0.1:{broker.http.rpartition(':')[2]}"
        refused = penstock("cluster", "drain", "1", "--url", url)
        assert (refused.exit_code, "http.tokens.file" in refused.stderr) == (1, True), refused.stderr


def test_a_broker_does_not_start_with_a_file_that_holds_no_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{SECRET[:-1]} alice\n")
    flags = ("--data-dir", str(tmp_path / "data"), "--set", f"http.tokens.file={tokens}")
    refused = penstock("serve", *flags, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert refused.exit_code == 1
    assert "line 1 of http.tokens.file" in refused.stderr
