"""Files and folders that settings name, looked at before a broker starts with them."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from penstock.cli.main import main
from penstock.cli.server import check_config
from penstock.errors import ConfigError
from penstock.host.folder_lock import FolderLock
from penstock.host.os_disk import OsDisk, translate_os_errors
from penstock.metadata.sqlite_store import SqliteStore
from penstock.testing import broker

HOST = "127.0.0.1"
NOBODY = 65_534
# The interpreter itself may be where nobody else can read: what is needed is loaded by a first check.
AS_NOBODY = """
import contextlib, io, os, signal, tempfile
import penstock.cli.server.check_config, penstock.cli.main, penstock.cli.streams, penstock.host.tls
with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as empty:
    penstock.cli.server.check_config.main(["--data-dir", empty])
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)
penstock.cli.main.main()
"""


class Pem(NamedTuple):
    key: bytes
    certificate: bytes
    other_key: bytes
    authority: bytes


@pytest.fixture(scope="module")
def pem() -> Pem:
    authority = trustme.CA()
    issued = authority.issue_cert(HOST)
    return Pem(
        issued.private_key_pem.bytes(),
        issued.cert_chain_pems[0].bytes(),
        authority.issue_cert(HOST).private_key_pem.bytes(),
        authority.cert_pem.bytes(),
    )


def torn(block: bytes) -> bytes:
    """With its middle lines gone."""
    lines = block.splitlines(keepends=True)
    return b"".join([lines[0], *lines[3:]])


def encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"right"),
    )


def settings(keystore: Path, **more: str) -> dict[str, str]:
    tls = {"listeners": f"TLS://{HOST}:0", "ssl.keystore.location": str(keystore)}
    return tls | {name.replace("_", "."): value for name, value in more.items()}


def refusal(given: dict[str, str]) -> str:
    """What `check-config` says, which is what a broker says that is started with the same."""
    sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    with pytest.raises(ConfigError) as checked:
        check_config.main(sets)
    with pytest.raises(ConfigError) as started, broker(**given):
        pass
    assert str(started.value) == str(checked.value)
    return str(checked.value)


def test_a_sound_keystore_and_truststore_are_ok(
    tmp_path: Path, pem: Pem, capsys: pytest.CaptureFixture[str]
) -> None:
    keystore, truststore = tmp_path / "keystore.pem", tmp_path / "ca.pem"
    keystore.write_bytes(b"Subject: a comment\n" + encrypted(pem.key) + pem.certificate)
    truststore.write_bytes(pem.authority)
    given = settings(
        keystore,
        ssl_truststore_location=str(truststore),
        ssl_client_auth="required",
        ssl_key_password="right",
    )

    check_config.main([word for key, value in given.items() for word in ("--set", f"{key}={value}")])
    assert capsys.readouterr().out.startswith("ok\n")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lambda pem: b"", "{file} is not a PEM file; convert"),
        (lambda pem: os.urandom(100), "{file} is not a PEM file; convert"),
        (lambda pem: pem.certificate, "{file} holds no private key; put the private key and"),
        (lambda pem: pem.key, "{file} holds no certificate; put the private key and"),
        (lambda pem: pem.key + torn(pem.certificate), "certificate 1 of 1 in {file} is malformed; copy"),
        (lambda pem: pem.key + pem.certificate + torn(pem.authority), "certificate 2 of 2 in {file} is"),
        (lambda pem: torn(pem.key) + pem.certificate, "the private key in {file} is malformed"),
        (lambda pem: pem.key[:60], "{file} is malformed: a part of it begins and does not end"),
        (
            lambda pem: pem.other_key + pem.certificate,
            "the private key in {file} does not belong to the first",
        ),
        (lambda pem: encrypted(pem.key) + pem.certificate, "{file} cannot be used: the key is encrypted and"),
    ],
)
def test_a_keystore_that_is_no_good_is_named_with_what_is_wrong(
    tmp_path: Path, pem: Pem, content: Callable[[Pem], bytes], problem: str
) -> None:
    file = tmp_path / "keystore.pem"
    file.write_bytes(content(pem))

    said = refusal(settings(file))

    assert said.startswith("ssl.keystore.location of listener TLS: " + problem.format(file=file)), said


def test_a_wrong_password_is_told_as_such(tmp_path: Path, pem: Pem) -> None:
    file = tmp_path / "keystore.pem"
    file.write_bytes(encrypted(pem.key) + pem.certificate)

    assert "check ssl.key.password" in refusal(settings(file, ssl_key_password="wrong"))


def test_files_that_are_missing_are_all_named(tmp_path: Path) -> None:
    said = refusal(settings(tmp_path / "a.pem", ssl_truststore_location=str(tmp_path / "b.pem")))

    assert said.splitlines() == [
        f"ssl.keystore.location of listener TLS: there is no file {tmp_path}/a.pem; "
        "give the path of a PEM file",
        f"ssl.truststore.location of listener TLS: there is no file {tmp_path}/b.pem; "
        "give the path of a PEM file",
    ]
    assert f"{tmp_path} cannot be read (Is a directory)" in refusal(settings(tmp_path))


def test_a_truststore_without_certificates_is_refused(tmp_path: Path, pem: Pem) -> None:
    keystore, truststore = tmp_path / "keystore.pem", tmp_path / "ca.pem"
    keystore.write_bytes(pem.key + pem.certificate)
    given = settings(keystore, ssl_truststore_location=str(truststore))

    truststore.write_bytes(pem.key)
    assert f"ssl.truststore.location of listener TLS: {truststore} holds no certificate" in refusal(given)
    truststore.write_bytes(pem.authority + torn(pem.authority))
    assert f"certificate 2 of 2 in {truststore} is malformed" in refusal(given)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where also a user without rights can look."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def refused_as_nobody(*flags: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, "check-config", *flags], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


def test_what_the_user_may_not_touch_is_named(open_folder: Path, pem: Pem) -> None:
    data, keystore = open_folder / "data", open_folder / "keystore.pem"
    data.mkdir()
    keystore.write_bytes(pem.key + pem.certificate)
    keystore.chmod(0)
    (data / "metadata.sqlite").touch()
    (data / "metadata.sqlite").chmod(0o444)

    data.chmod(0o777)
    assert f"may not read and write {data}/metadata.sqlite" in refused_as_nobody("--data-dir", str(data))
    data.chmod(0o555)
    for given in (data, data / "below"):
        said = refused_as_nobody("--data-dir", str(given))
        assert f"may not write to {data}; allow it, or choose another folder with --data-dir" in said
    tls = [word for key, value in settings(keystore).items() for word in ("--set", f"{key}={value}")]
    assert f"{keystore} cannot be read (Permission denied)" in refused_as_nobody(*tls)


def test_a_metadata_file_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").mkdir()

    with pytest.raises(ConfigError, match=r"metadata\.sqlite is a folder and should be a file"):
        check_config.main(["--data-dir", str(tmp_path)])


def test_a_data_directory_of_another_node_is_refused_and_not_touched(tmp_path: Path) -> None:
    with broker(tmp_path):
        pass
    before = sorted(tmp_path.iterdir())

    with pytest.raises(ConfigError, match="belongs to node 1, not to node 4; start with --node-id 1"):
        check_config.main(["--data-dir", str(tmp_path), "--node-id", "4"])
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_of_somebody_else_is_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()

    with pytest.raises(ConfigError, match=r"not a Penstock data directory.*found 'thesis.txt'"):
        check_config.main(["--data-dir", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("content", ["", "garbage", '{"format": 1}', '{"node_id": "x"}'])
def test_an_identity_that_cannot_be_read_is_told_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "penstock.json").write_text(content)

    with pytest.raises(ConfigError) as refused:
        check_config.main(["--data-dir", str(tmp_path)])
    file = tmp_path / "penstock.json"
    assert str(refused.value) == (
        f"log.dirs = '{tmp_path}': {file} is damaged; restore it from a backup of the data directory"
    )


def test_a_file_system_that_is_mounted_read_only_is_told_apart_from_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    read_only = os.statvfs_result((*real[:8], real.f_flag | os.ST_RDONLY, *real[9:]))
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)

    with pytest.raises(ConfigError, match=f"the file system of {tmp_path} is mounted read-only; mount it"):
        check_config.main(["--data-dir", str(tmp_path / "data")])


def in_use(folder: Path) -> None:
    lock = FolderLock(str(folder))
    try:
        FolderLock(str(folder))
    finally:
        lock.release()


def with_a_broken_store(folder: Path) -> None:
    (folder / "metadata.sqlite").write_bytes(b"no database" * 1000)
    SqliteStore(str(folder / "metadata.sqlite"))


def on_a_full_disk(folder: Path) -> None:
    with translate_os_errors("write", str(folder)):
        raise OSError(errno.ENOSPC, "No space left on device")


def in_a_folder_that_cannot_be_created(folder: Path) -> None:
    (folder / "file").touch()
    OsDisk().make_folder(str(folder / "file" / "data"))


def without_a_free_descriptor(folder: Path) -> None:
    with translate_os_errors("open", str(folder)):
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("start", "remedy"),
    [
        (in_use, "Stop that process, or choose another folder with --data-dir."),
        (with_a_broken_store, "Restore it from a backup, or move the data directory away to begin anew."),
        (on_a_full_disk, "Free some space on its disk and start again."),
        (
            in_a_folder_that_cannot_be_created,
            "Allow this user to write there, or choose another folder with --data-dir.",
        ),
        (without_a_free_descriptor, "Allow this process more open files (`ulimit -n`) and start again."),
    ],
)
def test_a_start_that_fails_says_what_to_do(
    start: Callable[[Path], None],
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_config, "main", lambda _: start(tmp_path))
    monkeypatch.setattr(sys, "argv", ["penstock", "check-config"])
    with pytest.raises(SystemExit) as ended:
        main()
    sentence, _, said = str(ended.value.code).partition(remedy)
    assert sentence.startswith("penstock: ")
    assert sentence.endswith(". ")
    assert (said, remedy in str(ended.value.code)) == ("", True)


@pytest.mark.parametrize("command", ["serve", "check-config"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--node-id", "x"], "node.id = 'x': must be an integer of at least 0 (from --node-id)"),
        (["--no-such", "1"], "there is no option --no-such 1; `penstock {command} --help` lists what there"),
        (["--kafka"], "--kafka: expected one argument; `penstock {command} --help`"),
    ],
)
def test_a_wrong_flag_is_one_sentence(
    command: str,
    flags: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", command, *flags])
    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("penstock: " + said.format(command=command))
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_wrong_settings_are_wrong_use(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--node-id", "x"], ["--node-id", "-5"], ["--kafka", "127.0.0.1:99999"], ["--set", "a=b"]):
        monkeypatch.setattr(sys, "argv", ["penstock", command, *wrong])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert wrong[1].split("=")[0] in capsys.readouterr().err
