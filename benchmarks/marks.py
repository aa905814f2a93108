"""What the marks of a phase trace cost a decode step: the same requests, marks off against on.

`python -m benchmarks.marks [--rounds 40] [--json FILE]`. Both engines stay up together and serve each request
in turn, who goes first alternating, so that a busy machine slows them alike; the ratio is taken pair by pair.
The context is short, where a step is shortest and the marks weigh most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import DEPTH, TINY, Engine, engine_arguments, running
from harness.engine.probes.settings import ProbeSettings, file_name
from harness.engine.settings import EngineSettings

CONTEXT_TOKENS = 256
ARMS = ("off", "on", "off again")


def step_ms(engine: Engine, prompt: list[int], new_tokens: int) -> tuple[float, list[int]]:
    """Milliseconds a decode step of one request, its short prefill included; and its output."""
    began = time.perf_counter()
    answer, _ = engine.serve(prompt, new_tokens)
    elapsed_ms = (time.perf_counter() - began) * 1e3
    return elapsed_ms / sum(answer["histogram"]), answer["ids"]


def measure(rounds: int, new_tokens: int, threads: int, dtype: str) -> dict[str, Any]:
    """Step times by arm, pair by pair, and how many lines the trace wrote.

    `off again` is a second engine without marks: how far equal engines differ is the yardstick.
    """
    rng = random.Random(0)
    vocabulary = json.loads((TINY / "config.json").read_text())["vocab_size"]
    settings = EngineSettings(draft_tokens=DEPTH)
    times: dict[str, list[float]] = {name: [] for name in ARMS}
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
            outputs = []
            for name in names:
                took, ids = step_ms(engines[name], prompt, new_tokens)
                times[name].append(took)
                outputs.append(ids)
            if any(ids != outputs[0] for ids in outputs):
                raise RuntimeError("marks changed an output: this is no fair comparison")
        lines = (root / "on" / file_name("trace", 0)).read_text().count("\n")
    return {"times_ms": times, "lines": lines}


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
    times = found["times_ms"]
    for name, values in times.items():
        print(f"step, marks {name:10} {statistics.median(values):8.3f} ms (median of {len(values)})")
    for name in ("on", "off again"):
        middle, low, high = ratio(times[name], times["off"])
        print(f"{name} / off: {middle:.4f} [{low:.4f}, {high:.4f}]")
    print(f"lines written: {found['lines']}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
