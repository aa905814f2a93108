"""Kill the harness at random moments and go on: nothing lost, nothing twice, no process left.

`python -m harness.sweep.chaos --kills 20`: real servers on the shipped model. Each round starts the same
command, kills it and its worker with SIGKILL after a random time, and checks what is left. At the end the
command runs through, and every point must have exactly one good record.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness.commandline import guarded, place
from harness.errors import ConfigError, HarnessError
from harness.records import LOG_FILE, RECORD_FILE, Outcome, iter_record_dirs, read_record
from harness.server.launch import BOOT_MARK
from harness.server.processes import find_orphans

_GONE_S = 30.0
_LOG = "chaos.log"


class Broken(HarnessError):
    """An invariant did not hold."""


def main(arguments: list[str] | None = None) -> int:
    """Run the rounds; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.sweep.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest-s", type=float, default=60.0, help="latest moment of a kill")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--results", type=place, default=Path("results/chaos"))
    parser.add_argument("overrides", nargs="*", default=[], help="default: experiment=smoke hardware=cpu")
    options = parser.parse_args(arguments)
    overrides = options.overrides or ["experiment=smoke", "hardware=cpu"]
    command = [sys.executable, "-m", "harness", *overrides, f"results={options.results}"]
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    _say(f"seed {seed}: {' '.join(command)}")
    return guarded(lambda: _run(command, options, seed), failure=1)


def _run(command: list[str], options: argparse.Namespace, seed: int) -> int:
    log = options.results / _LOG
    if next(iter_record_dirs(options.results), None) is not None and not log.exists():
        # Rounds that end early begin again from nothing.
        raise ConfigError(
            f"{options.results} holds records of another use, which would be lost: name another"
        )
    try:
        _rounds(command, options.results, options.kills, options.longest_s, random.Random(seed))
        _finish(command, options.results)
    except Broken as error:
        _say(f"broken: {error}")
        return 1
    _say("nothing lost, nothing twice, no process left")
    return 0


def _rounds(command: list[str], results: Path, kills: int, longest_s: float, draw: random.Random) -> None:
    results.mkdir(parents=True, exist_ok=True)
    done = 0
    while done < kills:
        before = _good(results)
        with (results / _LOG).open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        # As many early moments as late ones: starts, prefills, decodes and writes all take their turn.
        wait_s = longest_s ** draw.random()
        try:
            process.wait(wait_s)
            _say(f"round {done + 1}: finished before the kill after {wait_s:.1f} s; again from nothing")
            _check(results, before)
            _forget(results)
            continue
        except subprocess.TimeoutExpired:
            pass
        tree = _tree(process.pid)
        victims = [p for p in tree if _is_worker(p)]
        # The harness, its worker, or both: each must be enough.
        chosen = draw.choice(["harness", "worker", "both"])
        if chosen != "worker" or not victims:
            process.send_signal(signal.SIGKILL)
        if chosen != "harness":
            for victim in victims:
                _kill(victim)
        if chosen == "worker" and victims:
            process.send_signal(signal.SIGKILL)
        process.wait()
        _wait_gone(tree)
        _check(results, before)
        done += 1
        _say(f"round {done}: {chosen} killed after {wait_s:.1f} s, {len(_good(results))} records good")


def _finish(command: list[str], results: Path) -> None:
    before = _good(results)
    with (results / _LOG).open("ab") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    if code != 0:
        raise Broken(f"the last run ended with exit status {code}: see {results / 'chaos.log'}")
    _check(results, before)
    leftovers = [p.name for p in (results / "points").iterdir() if p.name.startswith(".")]
    locks = list((results / "locks").glob("*.lock"))
    if leftovers or locks:
        raise Broken(f"left behind: {leftovers} {[lock.name for lock in locks]}")


def _good(results: Path) -> dict[str, str]:
    """Finished points and a digest of what is stored of each."""
    found = {}
    for directory in iter_record_dirs(results):
        if (directory / RECORD_FILE).exists() and read_record(directory).outcome is Outcome.OK:
            body = (directory / RECORD_FILE).read_bytes() + (directory / LOG_FILE).read_bytes()
            found[directory.name] = hashlib.sha256(body).hexdigest()
    return found


def _check(results: Path, before: dict[str, str]) -> None:
    """Every record is whole, and what was finished is untouched: neither lost nor measured twice."""
    after = _good(results)
    for key, digest in before.items():
        if after.get(key) != digest:
            raise Broken(f"point {key} was finished and is now {'different' if key in after else 'gone'}")


def _forget(results: Path) -> None:
    """Drop the records, so that the next rounds have work."""
    for directory in iter_record_dirs(results):
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def _tree(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "harness.sweep.worker" in process.cmdline()
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return


def _wait_gone(tree: list[psutil.Process]) -> None:
    """Everything that ran at the kill ends by itself, and so does what it started meanwhile."""
    _, left = psutil.wait_procs(tree, timeout=_GONE_S)
    left = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    if left:
        raise Broken(f"processes {[p.pid for p in left]} still run {_GONE_S:.0f} s after the kill")
    mine = [p for p in find_orphans(BOOT_MARK) if _started_by_me(p)]
    deadline = time.monotonic() + _GONE_S
    while mine and time.monotonic() < deadline:
        time.sleep(0.2)
        mine = [p for p in mine if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    if mine:
        raise Broken(f"server processes {[p.pid for p in mine]} are left")


def _started_by_me(process: psutil.Process) -> bool:
    """Other harnesses of this user may run servers too."""
    try:
        return process.environ().get("WMTP_CHAOS") == str(os.getpid())
    except psutil.Error:
        return False


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    os.environ["WMTP_CHAOS"] = str(os.getpid())
    sys.exit(main())
