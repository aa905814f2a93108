"""Faults done to real servers while a sweep runs: each is its own record, the others go on, a rerun mends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.records import Outcome, Record, read_all
from harness.server.launch import BOOT_MARK
from harness.server.processes import find_orphans

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(3000)]

POINT = ("input=niah_multiquery_enum_small", "context=6144", "max_new_tokens=160", "ignore_eos=true")
SWEEP = ("-m", "arm=dense,native,windowed,ring", "depth=3", *POINT)
PREFILL, DECODE = b"Prefill batch", b"Decode batch"


class Faults:
    """A harness under way, and faults done to its servers one after the other."""

    def __init__(self, results: Path, log: Path) -> None:
        self.results = results
        self.log = log

    def words(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "harness", "hardware=cpu", f"results={self.results}", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as file:
            return subprocess.Popen(self.words(*arguments), stdout=file, stderr=file, start_new_session=True)

    def run(self, *arguments: str) -> int:
        return self.start(*arguments).wait(2400)

    def when(self, harness, arm: str, line: bytes, count: int) -> dict[str, psutil.Process]:
        """The server processes of an arm's boot by title, once its log holds `count` such lines."""
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline and harness.poll() is None:
            for processes in self.servers(harness, arm):
                log = Path(processes["log"])
                if log.exists() and log.read_bytes().count(line) >= count:
                    return processes["titles"]
            time.sleep(0.2)
        raise AssertionError(f"{arm} never came to {line!r}:\n{self.log.read_text()[-3000:]}")

    def servers(self, harness: subprocess.Popen[bytes], arm: str):
        newest = sorted(self.results.glob("logs/servers/*.log"), key=lambda path: path.stat().st_mtime)[-1:]
        for log in newest:
            titles = {}
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(harness.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        title = process.cmdline()[0] if process.cmdline() else ""
                        titles["launch" if "sglang.launch_server" in process.cmdline() else title] = process
            if "launch" in titles and serves(titles["launch"].cmdline(), arm):
                yield {"log": log, "titles": titles}

    def records(self) -> dict[str, Record]:
        found, errors = read_all(self.results)
        assert errors == []
        return {record.point.arm: record for record in found}


def serves(command: list[str], arm: str) -> bool:
    if arm == "dense":
        return "--speculative-algorithm" not in command
    if arm == "native":
        return "--speculative-algorithm" in command and "--speculative-draft-window-size" not in command
    return "--speculative-draft-window-size" in command


@pytest.fixture
def faults(tmp_path):
    yield Faults(tmp_path / "results", tmp_path / "harness.log")
    mine = [p for p in find_orphans(BOOT_MARK) if str(tmp_path) in " ".join(p.cmdline())]
    assert mine == [], "a server process outlived its test"


def test_each_killed_or_stopped_server_is_a_record_and_a_rerun_mends_it(faults):
    harness = faults.start(*SWEEP, "server.stall_limit_s=20", "server.stop_timeout_s=20")
    try:
        # The warm-up's prefills are two lines, so three mean the middle of the timed one.
        faults.when(harness, "dense", PREFILL, 3)["sglang::scheduler"].kill()
        faults.when(harness, "native", DECODE, 24)["launch"].kill()
        faults.when(harness, "windowed", DECODE, 24)["sglang::scheduler"].send_signal(signal.SIGSTOP)
        harness.wait(2400)
    finally:
        if harness.poll() is None:
            os.killpg(harness.pid, signal.SIGTERM)
    records = faults.records()
    said = {arm: (record.outcome, record.reason) for arm, record in records.items()}
    assert said["dense"][0] is Outcome.SERVER_DIED, said
    assert said["native"][0] is Outcome.SERVER_DIED, said
    assert said["windowed"][0] is Outcome.STALLED, said
    assert said["ring"] == (Outcome.OK, "")
    stacks = Path(said["windowed"][1].rpartition("what its processes were doing: ")[2])
    assert "sglang::scheduler" in stacks.read_text()
    assert harness.returncode == 1
    assert faults.run(*SWEEP) == 0, faults.log.read_text()[-3000:]
    assert {record.outcome for record in faults.records().values()} == {Outcome.OK}


def test_a_taken_port_a_small_pool_and_missing_draft_weights(faults, tmp_path):
    from harness.engine.tiny.variants import write_variant  # needs torch

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        faults.run("arm=dense", *POINT, f"server.port={holder.getsockname()[1]}")
    assert faults.records()["dense"].outcome is Outcome.PORT_IN_USE
    bare = write_variant("without_mtp", tmp_path / "bare")
    words = ("-m", "arm=dense,native", *POINT, f"model.path={bare}", "server.max_total_tokens=1000")
    faults.run(*words)
    found = {(r.point.arm, r.outcome) for r in read_all(faults.results)[0]}
    assert ("native", Outcome.NO_DRAFT_WEIGHTS) in found
    assert ("dense", Outcome.DOES_NOT_FIT) in found
