"""Starts probed servers for the tests of this folder, on checkpoints whose draft's attention is known."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine.tiny import checkpoint_path
from harness.engine.tiny.variants import write_variant
from harness.measure.probes import read_lines
from harness.server.lifecycle import Server
from harness.server.spec import ServerSpec

DEPTH = 7
NARROW, WIDE = (252, 4), (1020, 4)
CONTEXT_TOKENS = 1200


@dataclass(frozen=True)
class Probed:
    """What a probed server answered, and the lines that its probe wrote meanwhile."""

    replies: list[dict[str, Any]]
    lines: list[dict[str, Any]]

    @property
    def told(self) -> list[tuple[list[int], list[int]]]:
        """Output and accept histogram of each reply."""
        return [(r["output_ids"], r["meta_info"]["spec_correct_drafts_histogram"]) for r in self.replies]

    def of_window(self, window: tuple[int, int], name: str) -> list[Any]:
        """One value of one window in every line."""
        return [
            one[name]
            for line in self.lines
            for one in line["windows"]
            if (one["window_tokens"], one["sink_tokens"]) == window
        ]


def prompts(count: int = 2) -> list[list[int]]:
    """Random tokens; the second prompt is shorter than the first."""
    draw = random.Random(0)
    return [[draw.randrange(5, 3000) for _ in range(CONTEXT_TOKENS - 150 * i)] for i in range(count)]


def ask(
    folder: Path,
    probe: str | None,
    variant: str | None = None,
    windows: tuple[tuple[int, int], ...] = (NARROW, WIDE),
    new_tokens: int = 24,
    together: bool = False,
) -> Probed:
    """Serve a variant of the tiny model (None: as shipped) with a probe, and ask it the prompts greedily.

    Args:
        together: all prompts in one batch; else one after the other.
    """
    model = checkpoint_path() if variant is None else write_variant(variant, folder / "model")
    dtype = "float32" if variant is not None and "float32" in variant else "bfloat16"
    spec = ServerSpec(
        model_path=str(model), device="cpu", arm="native", depth=DEPTH, window_tokens=None, sink_tokens=None,
        tp=1, dtype=dtype, kv_dtype=dtype, target_backend="intel_amx", draft_backend="intel_amx",
        context_length=2048, max_running_requests=2, chunked_prefill_tokens=512, max_total_tokens=4096,
        threads=1, extra_arguments=("--max-mamba-cache-size", "16"),
        probe=probe, probe_windows=windows if probe else (),
    )  # fmt: skip
    directory = (folder / "probe").absolute() if probe else None
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    with Server(spec, folder / "server.log", startup_timeout_s=600, probe_directory=directory) as server:
        began = time.monotonic_ns()
        replies = []
        for asked in [prompts()] if together else [[prompt] for prompt in prompts()]:
            replies += server.client.generate(asked, sampling, timeout_s=300)
            server.client.flush_cache()
        ended = time.monotonic_ns()
    # The writer has flushed by now: its process has ended.
    lines = read_lines(directory / f"{probe}.rank0.jsonl", began, ended) if directory else []
    return Probed(replies, lines)
