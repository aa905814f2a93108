"""Guarded processes with real children: everything of ours ends, nothing else does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.errors import ServerError
from harness.records import Outcome
from harness.server import processes

MARK = "WMTP_TEST_MARK"
REPOSITORY = Path(__file__).parents[2]

# A server with a child, a grandchild in a session of its own whose parent dies, all deaf to SIGTERM.
TREE = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
escape = '''
import os, time
if os.fork():
    os._exit(0)
os.setsid()
open("{folder}/escaped.pid", "w").write(str(os.getpid()))
time.sleep(600)
'''
sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleep])
open("{folder}/child.pid", "w").write(str(child.pid))
subprocess.run([sys.executable, "-c", escape])
open("{folder}/server.pid", "w").write(str(os.getpid()))
time.sleep(600)
"""


def read_pids(folder: Path) -> dict[str, psutil.Process]:
    """Processes of a started tree by name."""
    names = ("child", "escaped", "server")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        texts = {n: p.read_text() for n in names if (p := folder / f"{n}.pid").exists()}
        if len(texts) == len(names) and all(texts.values()):
            return {n: psutil.Process(int(text)) for n, text in texts.items()}
        time.sleep(0.05)
    raise AssertionError(f"the tree did not start: {list(folder.iterdir())}")


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def wait_gone(found, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not all(map(gone, found)):
        time.sleep(0.05)
    return [p for p in found if not gone(p)]


@pytest.fixture
def bystander():
    """A process that must survive: in a session of its own, with the same program and another mark."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, MARK: "someone-else"},
        start_new_session=True,
    )
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def start(folder: Path, boot: str, *arguments: str) -> processes.Guarded:
    command = [sys.executable, "-c", TREE.format(folder=folder), *arguments]
    return processes.spawn_guarded(command, {**os.environ, MARK: boot}, folder / "log")


@pytest.mark.parametrize("deaf", [False, True])
def test_stop_ends_the_whole_tree_and_nothing_else(tmp_path, bystander, deaf):
    guard = start(tmp_path, "boot-a", *(["deaf"] if deaf else []))
    tree = read_pids(tmp_path)
    assert guard.poll() is None
    assert os.getsid(tree["escaped"].pid) not in (guard.pid, os.getsid(0))
    assert os.getpgid(tree["server"].pid) == guard.pid
    assert {p.pid for p in tree.values()} <= {p.pid for p in processes.find_orphans(MARK, ["boot-a"])}
    processes.stop_guarded(guard, MARK, "boot-a", timeout_s=20, grace_s=0.5)
    assert wait_gone(tree.values(), 0.5) == []
    assert guard.poll() is not None
    assert processes.find_orphans(MARK, ["boot-a"]) == []
    assert not gone(bystander)
    processes.stop_guarded(guard, MARK, "boot-a", timeout_s=1)  # again is harmless


def test_a_stopped_server_and_a_stopped_guard_are_ended(tmp_path):
    guard = start(tmp_path, "boot-s")
    tree = read_pids(tmp_path)
    tree["server"].suspend()
    os.kill(guard.pid, signal.SIGSTOP)
    processes.stop_guarded(guard, MARK, "boot-s", timeout_s=1, grace_s=0.2)
    assert wait_gone(tree.values(), 1) == []


def test_nothing_outlives_a_killed_harness(tmp_path, bystander):
    harness = f"""
import os, sys, time
from pathlib import Path
from harness.server import processes
folder = Path({str(tmp_path)!r})
command = [sys.executable, "-c", {TREE.format(folder=tmp_path)!r}, "deaf"]
guard = processes.spawn_guarded(command, {{**os.environ, {MARK!r}: "boot-k"}}, folder / "log")
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", harness], cwd=REPOSITORY)
    try:
        tree = read_pids(tmp_path)
        guard = psutil.Process(os.getpgid(tree["server"].pid))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_gone([guard, *tree.values()]) == []
    assert not gone(bystander)


def test_a_killed_guard_takes_the_server_along_and_leaves_findable_orphans(tmp_path, bystander):
    guard = start(tmp_path, "boot-g")
    tree = read_pids(tmp_path)
    os.kill(guard.pid, signal.SIGKILL)
    guard.process.wait()
    assert wait_gone([tree["server"]]) == []
    left = processes.left_behind(MARK)
    assert tree["escaped"].pid in {p.pid for p in left}
    assert guard.poll() == -signal.SIGKILL
    processes.stop_guarded(guard, MARK, "boot-g", timeout_s=5)
    assert wait_gone(tree.values(), 1) == []
    assert not gone(bystander)


@pytest.mark.parametrize("whose", ["own", "another checkout's"])
def test_guarded_processes_are_not_left_behind(tmp_path, monkeypatch, whose):
    if whose != "own":
        copy = tmp_path / "harness" / "server" / "guard.py"
        copy.parent.mkdir(parents=True)
        shutil.copy(processes._GUARD, copy)
        monkeypatch.setattr(processes, "_GUARD", copy)
    guard = start(tmp_path, "boot-l")
    read_pids(tmp_path)
    monkeypatch.undo()
    try:
        assert processes.find_orphans(MARK, ["boot-l"])
        assert [p for p in processes.left_behind(MARK) if p.environ()[MARK] == "boot-l"] == []
    finally:
        processes.stop_guarded(guard, MARK, "boot-l", timeout_s=20, grace_s=0.2)


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("import os; os.abort()", -6)],
)
def test_the_guard_ends_as_the_server_ended(tmp_path, code, status):
    guard = processes.spawn_guarded([sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    guard.process.wait(20)
    assert guard.poll() == status
    guard.close()


def test_a_server_that_dies_takes_its_children_along(tmp_path):
    guard = start(tmp_path, "boot-d")
    tree = read_pids(tmp_path)
    tree["server"].kill()
    assert guard.process.wait(20) == -signal.SIGKILL
    assert wait_gone(tree.values(), 1) == []
    guard.close()


def test_output_goes_to_the_log_and_cleanup_runs(tmp_path):
    done = tmp_path / "cleaned"
    guard = processes.spawn_guarded(
        [sys.executable, "-c", "import sys; print('to out'); print('to err', file=sys.stderr)"],
        dict(os.environ), tmp_path / "log", cleanup=[sys.executable, "-c", f"open({str(done)!r}, 'w')"],
    )  # fmt: skip
    assert guard.process.wait(20) == 0
    guard.close()
    assert sorted((tmp_path / "log").read_text().split("\n")) == ["", "to err", "to out"]
    assert done.exists()


def test_a_missing_program_says_so_in_the_log(tmp_path):
    guard = processes.spawn_guarded(["/no/such/program"], dict(os.environ), tmp_path / "log")
    assert guard.process.wait(20) == 127
    guard.close()
    assert "cannot start /no/such/program" in (tmp_path / "log").read_text()


def test_an_unwritable_log_is_a_server_error(tmp_path):
    with pytest.raises(ServerError, match="cannot start the server"):
        processes.spawn_guarded(["true"], dict(os.environ), tmp_path / "none" / "log")


def test_stop_tree_and_reused_ids(tmp_path, bystander):
    process = subprocess.Popen([sys.executable, "-c", TREE.format(folder=tmp_path), "deaf"])
    tree = read_pids(tmp_path)
    known = [tree["escaped"]]  # it lost its parent before this snapshot
    assert processes.stop_tree(process.pid, grace_s=0.3, known=known) == []
    process.wait()
    assert wait_gone(tree.values(), 1) == []
    stale = psutil.Process(bystander.pid)
    stale._create_time = 1.0  # an id that was given to another process since
    stale._ident = (stale.pid, 1.0)
    assert processes.kill_all([stale]) == []
    assert not gone(bystander)


def test_ports():
    port = processes.free_port()
    assert 20000 <= port < 32000
    with socket.create_server(("127.0.0.1", port)):
        assert not processes.port_is_free(port)
        with pytest.raises(
            ServerError, match=f"port {port} is still in use by process {os.getpid()}"
        ) as error:
            processes.wait_port_free(port, 0.1)
        assert error.value.kind == Outcome.PORT_IN_USE
    processes.wait_port_free(port, 5)


def test_a_listener_on_all_interfaces_counts():
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not processes.port_is_free(server.getsockname()[1])
