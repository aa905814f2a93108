"""What the marks of a phase trace cost a decode step: the same requests, marks off against on.

`python -m benchmarks.marks [--rounds 40] [--json FILE]`. The engines stay up together and serve each request
in turn, who goes first changing, so that a busy machine slows them alike; ratios are of the same request.
Beside wall time the processor time of the engine's processes is compared, which other programs disturb less
(Linux only), and the marks of an iteration are timed by themselves. The context is short, where a step is
shortest and the marks weigh most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.engine import DEPTH, TINY, Engine, engine_arguments, running
from harness.engine.probes.marks import HostClock, Recorder
from harness.engine.probes.settings import ProbeSettings, file_name
from harness.engine.probes.trace import profiler_ranges
from harness.engine.probes.writer import StepWriter
from harness.engine.settings import EngineSettings

CONTEXT_TOKENS = 256
ARMS = ("off", "on", "off again")


@dataclass(frozen=True)
class Step:
    """Means of one request's decode steps, its short prefill included; and its output."""

    wall_ms: float
    cpu_ms: float
    ids: tuple[int, ...]


def serve(engine: Engine, prompt: list[int], new_tokens: int) -> Step:
    """One request, timed."""
    began, used = time.perf_counter(), cpu_ns(engine)
    answer, _ = engine.serve(prompt, new_tokens)
    wall_ms, cpu_ms = (time.perf_counter() - began) * 1e3, (cpu_ns(engine) - used) / 1e6
    steps = sum(answer["histogram"])
    return Step(wall_ms / steps, cpu_ms / steps, tuple(answer["ids"]))


def cpu_ns(engine: Engine) -> int:
    """Processor time of an engine's processes so far, threads that have ended left out."""
    own = psutil.Process(engine.process.pid)
    total = 0
    for process in (own, *own.children(recursive=True)):
        for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(path.read_text().split()[0])
    return total


def measure(rounds: int, new_tokens: int, threads: int, dtype: str) -> dict[str, Any]:
    """Step times by arm, request by request, and how many lines the trace wrote.

    `off again` is a second engine without marks: how far equal engines differ is the yardstick.
    """
    rng = random.Random(0)
    vocabulary = json.loads((TINY / "config.json").read_text())["vocab_size"]
    settings = EngineSettings(draft_tokens=DEPTH)
    times: dict[str, list[Step]] = {name: [] for name in ARMS}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-marks-")))
        engines = {}
        for name in ARMS:
            folder = root / name.replace(" ", "-")
            folder.mkdir()
            probe = ProbeSettings("trace", str(folder)) if name == "on" else ProbeSettings()
            variables = {"SGLANG_PLUGINS": "windowed_mtp", **probe.environment()}
            arguments = engine_arguments(settings, TINY, 8192, dtype)
            engines[name] = stack.enter_context(running(settings, arguments, threads, folder, variables))
        for engine in engines.values():
            engine.answer()
            engine.serve([5] * 64, 32)
        for turn in range(rounds):
            prompt = [rng.randrange(5, vocabulary) for _ in range(CONTEXT_TOKENS)]
            names = [*ARMS[turn % 3 :], *ARMS[: turn % 3]]
            for name in names:
                times[name].append(serve(engines[name], prompt, new_tokens))
            if len({times[name][-1].ids for name in ARMS}) > 1:
                raise RuntimeError("marks changed an output: this is no fair comparison")
        time.sleep(1.0)
        lines = (root / "on" / file_name("trace", 0)).read_text().count("\n")
    measured = {
        name: {"wall_ms": [step.wall_ms for step in steps], "cpu_ms": [step.cpu_ms for step in steps]}
        for name, steps in times.items()
    }
    return {"steps": measured, "lines": lines}


def marks_us(repeats: int = 2000) -> float:
    """Microseconds of an iteration's marks and its line, without a model: the fastest of many."""
    parts = ["draft_prepare", "draft_index", *["draft_forward"] * (DEPTH - 2), "tree_build", "verify_prepare",
             "verify_index", "verify_forward", "sampling", "draft_extend_prepare", "draft_extend_index",
             "draft_extend_forward"]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        writer = StepWriter(Path(folder) / "lines")
        recorder = Recorder(HostClock(), writer.write, profiler_ranges(nvtx=False))
        fastest = float("inf")
        for _ in range(repeats):
            began = time.perf_counter()
            recorder.begin(step=1, batch=1, context_tokens=CONTEXT_TOKENS)
            for around in ("draft", "verify_commit", "draft_extend"):
                recorder.enter(around)
                recorder.leave()
            for part in parts:
                recorder.enter(part, numbered=part == "draft_forward")
                recorder.leave()
            recorder.end(lambda: {"accepted": [1]})
            fastest = min(fastest, time.perf_counter() - began)
        writer.flush()
    return fastest * 1e6


def ratio(on: list[float], off: list[float]) -> tuple[float, float, float]:
    """Median of the paired ratios, and its 95 % bootstrap interval."""
    ratios = np.array(on) / np.array(off)
    rng = np.random.default_rng(0)
    draws = np.median(rng.choice(ratios, (4000, len(ratios))), axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.rounds, options.new_tokens, options.threads, options.dtype)
    steps = found["steps"]
    for name, values in steps.items():
        wall, cpu = (statistics.median(values[kind]) for kind in ("wall_ms", "cpu_ms"))
        print(f"step, marks {name:10} {wall:8.3f} ms wall, {cpu:8.3f} ms of processor")
    for kind in ("wall_ms", "cpu_ms"):
        for name in ("on", "off again"):
            middle, low, high = ratio(steps[name][kind], steps["off"][kind])
            print(f"{kind} {name} / off: {middle:.4f} [{low:.4f}, {high:.4f}] of {options.rounds}")
    print(f"lines written: {found['lines']}")
    print(f"an iteration's marks and line by themselves: {marks_us():.1f} us")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
