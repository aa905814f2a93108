"""A server on another machine: nothing of this machine is recorded as if it were the server's."""

import subprocess
import time

from analysis.machine import busy_text
from harness import boots, compose, study
from harness.records import Outcome
from harness.server.processes import free_port
from harness.sweep import multirun


def test_the_record_says_that_the_environment_is_the_clients(sweep, tmp_path, monkeypatch):
    words = multirun.normalised(
        ["model=tiny", "arm=dense", "context=512", "max_new_tokens=8", "input.params.keys=8"]
    )
    spec = multirun.plan_of([*words, "hardware=cpu"]).boots[0].spec
    port, log = free_port(), tmp_path / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [str(sweep.interpreter), *spec.command(port)[1:]], env=sweep.environment(), stdout=file,
            stderr=file,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while b"fired up" not in log.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}"
        asked, sampled = [], []
        monkeypatch.setattr(boots, "is_here", lambda given: bool(asked.append(given)))
        monkeypatch.setattr(boots.GpuSampler, "__enter__", lambda self: sampled.append(self) or self)
        words += ["server=url", f"server.url={url}", f"server.log_path={log}"]
        made = (compose.load([*words, f"hardware={name}"]) for name in ("cpu", "b200"))
        cell, other = map(compose.open_cell, made)
        (record,) = study.measure([cell], tmp_path / "results").records
        (refused,) = study.measure([other], tmp_path / "results").records
    finally:
        server.kill()
        server.wait()
    assert record.outcome is Outcome.OK and set(asked) == {url}
    assert refused.outcome is Outcome.INVALID and refused.reason.endswith(
        "is not the one these points need: device is 'cpu', not 'cuda'"
    )
    assert set(record.environment) <= {"git", "harness_versions", "versions", "client"}
    assert record.environment["client"]["cpu"] and record.environment["client"]["load_average"]
    assert sampled == [] and record.samples == {} and busy_text(record) == ""
