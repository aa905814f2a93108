"""Starts engines for the tests of this folder, and makes their prompts."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from harness.engine.cpu.environment import cpu_environment
from harness.engine.settings import EngineSettings

JOB = Path(__file__).with_name("engine_job.py")
TINY = Path(
    os.environ.get("WINDOWED_MTP_TEST_MODEL", Path(__file__).parents[3] / "harness/engine/tiny/checkpoint")
)


@dataclass(frozen=True)
class Round:
    """Requests that are in flight together: prompts (token ids) and how many tokens each generates.

    Those in `aborted` (indices) are aborted after `abort_after_s` seconds.
    """

    prompts: list[list[int]]
    new_tokens: list[int]
    aborted: tuple[int, ...] = ()
    abort_after_s: float = 0.2


@dataclass
class Outcome:
    """What an engine run left behind."""

    rounds: list[list[dict[str, Any]]]
    log: str

    @property
    def replies(self) -> list[dict[str, Any]]:
        """Replies of all rounds in order."""
        return [reply for requests in self.rounds for reply in requests]

    def values(self, name: str) -> list[Any]:
        """One value of each reply."""
        return [reply[name] for reply in self.replies]

    @property
    def accept_length(self) -> float:
        """Mean tokens per verify step over all replies, the bonus token included."""
        histogram = [count for reply in self.replies for count in enumerate(reply["histogram"])]
        return 1 + sum(n * count for n, count in histogram) / sum(count for _, count in histogram)

    @property
    def facts(self) -> dict[str, str]:
        """The name=value pairs of the plugin's line in the log."""
        lines = [line for line in self.log.splitlines() if "windowed-mtp: mode=" in line]
        assert len(lines) == 1, f"{len(lines)} lines of the plugin in the log"
        return dict(pair.split("=", 1) for pair in lines[0].split("windowed-mtp: ")[1].split())

    @property
    def pool_tokens(self) -> list[int]:
        """Slots of target and draft pool, as SGLang's own log lines say."""
        return [int(n) for n in re.findall(r"KV Cache is allocated.*?#tokens: (\d+)", self.log)]


@dataclass
class Arm:
    """One engine configuration. `settings` None is dense decoding, mode=off the native draft."""

    settings: EngineSettings | None
    backend: str = "intel_amx"
    draft_backend: str | None = None
    dtype: str = "float32"
    model: Path = TINY
    engine: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Arguments of `sglang.Engine`."""
        arguments: dict[str, Any] = {
            "model_path": str(self.model),
            "device": "cpu",
            "attention_backend": self.backend,
            "dtype": self.dtype,
            "skip_tokenizer_init": True,
            "disable_radix_cache": True,
            "disable_overlap_schedule": True,
            "sleep_on_idle": True,
            "disable_cuda_graph": True,
            "mem_fraction_static": 0.1,
            "max_total_tokens": 20_000,
            "max_running_requests": 4,
            "max_mamba_cache_size": 16,
            "chunked_prefill_size": 512,
            "random_seed": 0,
            "log_level": "info",
        }
        settings = self.settings
        if settings is not None and settings.draft_tokens:
            arguments |= {
                "speculative_algorithm": "NEXTN",
                "speculative_num_steps": settings.draft_tokens - 1,
                "speculative_eagle_topk": settings.topk,
                "speculative_num_draft_tokens": settings.draft_tokens,
            }
            if self.draft_backend is not None:
                arguments["speculative_draft_attention_backend"] = self.draft_backend
            if settings.active:
                arguments |= {
                    "speculative_draft_window_size": settings.window_tokens,
                    "speculative_draft_sink_size": settings.sink_tokens,
                }
        return arguments | self.engine

    def process_environment(self) -> dict[str, str]:
        """Environment of the engine's process."""
        settings = self.settings or EngineSettings()
        mine = cpu_environment(
            threads=1, interpret_triton="triton" in self.backend or bool(self.draft_backend)
        )
        return {
            **os.environ,
            **mine,
            "SGLANG_PLUGINS": "windowed_mtp",
            **settings.environment(),
            **self.environment,
        }


def run(arm: Arm, rounds: list[Round], folder: Path, timeout_s: float = 300) -> Outcome:
    """Run one engine over `rounds`; an engine that fails raises AssertionError with the end of its log."""
    process, log, result = _run(arm, rounds, folder, timeout_s)
    assert process == 0 and result.exists(), f"engine failed ({process}):\n{log[-6000:]}"
    return Outcome(json.loads(result.read_text()), log)


def refusal(arm: Arm, folder: Path, timeout_s: float = 120) -> str:
    """Start an engine that must refuse to start; returns its log."""
    process, log, _ = _run(arm, [], folder, timeout_s)
    assert process != 0, "the engine started"
    return log


def _run(arm: Arm, rounds: list[Round], folder: Path, timeout_s: float) -> tuple[int, str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    job, result, log = folder / "job.json", folder / "result.json", folder / "engine.log"
    job.write_text(json.dumps({"engine": arm.arguments(), "rounds": [vars(r) for r in rounds]}))
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, str(JOB), str(job), str(result)],
            env=arm.process_environment(),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            _end_group(process)
    return code, log.read_text(errors="replace"), result


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return
    process.wait()


_SUBJECTS = ["falcon", "river", "castle", "garden", "lantern", "meadow", "anchor", "bridge", "candle"]
_VERBS = ["watched", "carried", "painted", "repaired", "followed", "counted", "opened", "borrowed"]
_PLACES = ["market", "station", "library", "museum", "village", "tower", "beach", "mountain"]


def prompt(tokens: int, seed: int) -> list[int]:
    """A prompt of exactly `tokens` ids: six sentences in random order, so that some drafts are accepted."""
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    known = [
        f"The {rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} the {rng.choice(_SUBJECTS)} "
        f"near the {rng.choice(_PLACES)}."
        for _ in range(6)
    ]
    ids: list[int] = []
    while len(ids) < tokens:
        ids += tokenizer.encode(" ".join(rng.choice(known) for _ in range(40)) + " ").ids
    return ids[:tokens]
