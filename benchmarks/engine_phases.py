"""A plugin for the engine benchmark: times the phases of prefill and of each decode step on the CPU.

Forwards on the CPU are synchronous, so that wall time around a call is its cost. Each call appends a JSON
line to the file that ENGINE_PHASES names.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = "sglang.srt.speculative.eagle_worker_v2."
PHASES = {
    WORKER + "EAGLEWorkerV2.forward_batch_generation": "step",
    WORKER + "EAGLEWorkerV2.verify": "verify",
    WORKER + "EagleDraftWorker.draft": "draft",
    WORKER + "EagleDraftWorker._draft_extend_for_decode": "draft_extend",
    WORKER + "EagleDraftWorker._draft_extend_for_prefill": "draft_prefill",
}


def activate() -> None:
    """Hook every phase; called by SGLang in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, name in PHASES.items():
        HookRegistry.register(target, timed(name), HookType.AROUND)


def timed(name: str) -> Callable[..., Any]:
    """A hook that times a call and says whether it was part of a prefill."""
    path = Path(os.environ["ENGINE_PHASES"])

    def hook(original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        prefill = bool(batch.forward_mode.is_extend_without_speculative())
        tokens = len(batch.input_ids) if prefill and batch.input_ids is not None else 0
        start = time.perf_counter()
        result = original(worker, batch, *args, **kwargs)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        line = {"phase": name, "prefill": prefill, "tokens": tokens, "ms": elapsed_ms}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    return hook


def main() -> None:
    """Say what this is: SGLang loads it, nobody runs it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_phases", description=__doc__)
    parser.parse_args()
    parser.error("a plugin does nothing by itself: run python -m benchmarks.engine")


if __name__ == "__main__":
    main()
