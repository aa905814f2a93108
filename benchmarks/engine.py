"""Step time of native, windowed and ring drafts on the CPU engine, paired in one run, and prefill with and
without pruning: `python -m benchmarks.engine [--contexts 4096 16384 32768] [--json FILE]`.

All engines stay up together and take turns, so that a busy machine slows them alike: read the ratios. The
limit beside them is the native step with its draft phases as short as at a context of W + n_sink tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine.cpu.environment import cpu_environment
from harness.engine.settings import EngineSettings

HERE = Path(__file__).parent
TINY = HERE.parent / "harness/engine/tiny/checkpoint"
DEPTH, WINDOW, SINK = 7, 252, 4
ARMS = {
    "native": EngineSettings(draft_tokens=DEPTH),
    "windowed": EngineSettings("windowed", WINDOW, SINK, DEPTH, prune_prefill=False),
    "ring": EngineSettings("ring", WINDOW, SINK, DEPTH, prune_prefill=False),
    "ring, pruned": EngineSettings("ring", WINDOW, SINK, DEPTH),
}


@dataclass
class Engine:
    """A running engine process and the file its phases go to."""

    process: subprocess.Popen[str]
    answers: Any
    phases: Path
    read_lines: int = 0

    def serve(self, prompt: list[int], new_tokens: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One request, alone: its answer and the phases it took."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompt": prompt, "new_tokens": new_tokens}) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        lines = self.phases.read_text().splitlines() if self.phases.exists() else []
        fresh, self.read_lines = lines[self.read_lines :], len(lines)
        return answer, [json.loads(line) for line in fresh]

    def answer(self) -> dict[str, Any]:
        """The next answer; an engine that has ended raises RuntimeError."""
        line = self.answers.readline()
        if not line:
            raise RuntimeError(f"an engine ended: see {self.phases.parent}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def engine_arguments(settings: EngineSettings, model: Path, tokens: int, dtype: str) -> dict[str, Any]:
    """Arguments of `sglang.Engine` for one arm."""
    arguments: dict[str, Any] = {
        "model_path": str(model),
        "device": "cpu",
        "attention_backend": "intel_amx",
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "disable_radix_cache": True,
        "disable_overlap_schedule": True,
        "sleep_on_idle": True,  # else the engines that wait for their turn spin on the cores
        "disable_cuda_graph": True,
        "mem_fraction_static": 0.1,
        "max_total_tokens": tokens,
        "max_running_requests": 2,
        "max_mamba_cache_size": 8,
        "chunked_prefill_size": 2048,
        "random_seed": 0,
        "log_level": "warning",
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": settings.draft_tokens - 1,
        "speculative_eagle_topk": settings.topk,
        "speculative_num_draft_tokens": settings.draft_tokens,
    }
    if settings.active:
        arguments["speculative_draft_window_size"] = settings.window_tokens
        arguments["speculative_draft_sink_size"] = settings.sink_tokens
    return arguments


@contextmanager
def running(
    settings: EngineSettings,
    arguments: dict[str, Any],
    threads: int,
    folder: Path,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """A starting engine with the phase plugin beside ours, which answers once when it is ready.

    Its processes end with the block. `variables` go into its environment last.
    """
    plugin = folder / "plugin"
    information = plugin / "engine_phases-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-phases\nVersion: 0\n")
    entry = "[sglang.srt.plugins]\nengine_phases = engine_phases:activate\n"
    (information / "entry_points.txt").write_text(entry)
    (plugin / "engine_phases.py").write_bytes((HERE / "engine_phases.py").read_bytes())
    environment = {**os.environ, **cpu_environment(threads=threads), **settings.environment()}
    environment["PYTHONPATH"] += os.pathsep + str(plugin)
    environment["SGLANG_PLUGINS"] = "windowed_mtp,engine_phases"
    environment["ENGINE_PHASES"] = str(folder / "phases.jsonl")
    environment |= variables or {}
    receive, send = os.pipe()
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "engine_worker.py"), str(send)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=[send],
            start_new_session=True,
            text=True,
        )
    os.close(send)
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments) + "\n")
    process.stdin.flush()
    try:
        with os.fdopen(receive) as answers:
            yield Engine(process, answers, folder / "phases.jsonl")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def step_phases(phases: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Milliseconds of each decode step, by phase; the first two steps are left out."""
    steps: dict[str, list[float]] = {}
    for line in phases:
        if not line["prefill"] or line["phase"] in {"verify", "draft_extend"}:
            steps.setdefault(line["phase"], []).append(line["ms"])
    return {name: values[2:] for name, values in steps.items()}


def prefill_phases(phases: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of a whole prefill: all of it, and the draft's part."""
    whole = sum(line["ms"] for line in phases if line["prefill"] and line["phase"] == "step")
    draft = sum(line["ms"] for line in phases if line["phase"] == "draft_prefill")
    return {"prefill": whole, "draft_prefill": draft}


Medians = dict[str, dict[str, float]]
"""Median milliseconds by arm and phase, at one prompt length."""


def measure(
    lengths: list[int], model: Path, threads: int, rounds: int, new_tokens: int, dtype: str
) -> Iterator[tuple[int, Medians]]:
    """Phases of a decode step and of the prefill, one prompt length after the other."""
    rng = random.Random(0)
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-engine-")))
        engines = {}
        for name, settings in ARMS.items():
            folder = root / name.replace(", ", "-")
            arguments = engine_arguments(settings, model, max(lengths) + 8192, dtype)
            engines[name] = stack.enter_context(running(settings, arguments, threads, folder))
        for engine in engines.values():
            engine.answer()
            engine.serve([5] * 64, 8)
        for length in lengths:
            prompt = [rng.randrange(5, vocabulary) for _ in range(length)]
            times: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
            for turn in range(rounds):
                names = list(engines)
                # Who goes first changes, so that no arm always meets a cold or a busy machine.
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    _, phases = engines[name].serve(prompt, new_tokens)
                    add_phases(times[name], phases)
            yield length, medians_of(times)


def add_phases(times: dict[str, list[float]], phases: list[dict[str, Any]]) -> None:
    """Collect the phases of one answer."""
    for phase, values in step_phases(phases).items():
        times.setdefault(phase, []).extend(values)
    for phase, value in prefill_phases(phases).items():
        times.setdefault(phase, []).append(value)


def medians_of(times: dict[str, dict[str, list[float]]]) -> Medians:
    """Medians of collected phases."""
    return {name: {p: statistics.median(v) for p, v in one.items() if v} for name, one in times.items()}


def report(length: int, medians: Medians, floor: dict[str, float]) -> dict[str, Any]:
    """Ratios at one context; `floor` is native where the window holds the whole context."""
    native = medians["native"]
    draft = native["draft"] + native["draft_extend"]
    limit = native["step"] - draft + floor["draft"] + floor["draft_extend"]
    windowed, plain, pruned = (medians[name] for name in ("windowed", "ring", "ring, pruned"))
    return {
        "context_tokens": length,
        "native_step_ms": native["step"],
        "native_draft_share": draft / native["step"],
        "windowed_step_ms": windowed["step"],
        "ring_step_ms": plain["step"],
        "native_over_windowed": native["step"] / windowed["step"],
        "native_over_ring": native["step"] / plain["step"],
        "limit": native["step"] / limit,
        "ring_over_windowed": plain["step"] / windowed["step"],
        "native_prefill_ms": native["prefill"],
        "native_draft_prefill_share": native["draft_prefill"] / native["prefill"],
        "unpruned_prefill_ms": plain["prefill"],
        "pruned_prefill_ms": pruned["prefill"],
        "draft_prefill_saved": 1 - pruned["draft_prefill"] / native["draft_prefill"],
    }


def main() -> None:
    """Measure, and print each context as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 16384, 32768, 65536])
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # The engines end with the benchmark, also when it is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    short = max(WINDOW + SINK - 2 * options.new_tokens, 16)
    measured = measure(
        [short, *options.contexts],
        options.model,
        options.threads,
        options.rounds,
        options.new_tokens,
        options.dtype,
    )
    _, floor = next(measured)
    rows = []
    for length, medians in measured:
        rows.append(report(length, medians, floor["native"]))
        for name, value in rows[-1].items():
            print(f"{name:28} {value if isinstance(value, int) else round(value, 3)}")
        print(flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
