"""The checks that need a GPU, in one run: `python tests/gpu/check.py --model PATH [--json FILE]`.

Per arm and draft backend (Triton, FlashInfer) one server with CUDA graphs and the overlap schedule. Outputs
of all arms are compared with dense decoding, acceptance of ring and window with each other (on one backend
they must agree), and the median step is read from the server's log at several context lengths. Fails on a
difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import requests

from harness.engine.settings import EngineSettings

DECODE = re.compile(r"Decode batch.*?accept len: ([\d.]+).*?gen throughput \(token/s\): ([\d.]+)")
POOL = re.compile(r"KV Cache is allocated.*?#tokens: (\d+)")


class Server:
    """One SGLang server; ends with the block."""

    def __init__(
        self, options: argparse.Namespace, settings: EngineSettings | None, backend: str | None, folder: Path
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log_path = folder / "server.log"
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", options.model,
            "--host", "127.0.0.1", "--port", str(self.port), "--page-size", "1", "--disable-radix-cache",
            "--attention-backend", options.target_backend, "--decode-log-interval", "1",
            "--skip-tokenizer-init", "--random-seed", "0", "--max-running-requests", "4",
            "--mem-fraction-static", str(options.mem_fraction), "--tp-size", str(options.tp),
            *(settings.server_arguments(backend) if settings is not None else []),
            *options.server_arguments.split(),
        ]  # fmt: skip
        environment = {**os.environ, "SGLANG_PLUGINS": "windowed_mtp"}
        environment |= (settings or EngineSettings()).environment()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Server:
        while requests_ok(f"http://127.0.0.1:{self.port}/health_generate") is False:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended:\n{self.log[-4000:]}")
            time.sleep(2)
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[dict[str, Any]]:
        """All prompts in flight together, greedy."""
        body = {
            "input_ids": prompts,
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        }
        reply = requests.post(f"http://127.0.0.1:{self.port}/generate", json=body, timeout=3600)
        reply.raise_for_status()
        return list(reply.json())


def requests_ok(address: str) -> bool:
    """Whether a GET succeeds."""
    try:
        return requests.get(address, timeout=30).ok
    except requests.RequestException:
        return False


def step_ms(log: str) -> float | None:
    """Median milliseconds of a step of one request, from decode lines after the first two."""
    pairs = [(float(length), float(rate)) for length, rate in DECODE.findall(log)][2:]
    steps = [1e3 * length / rate for length, rate in pairs if rate > 0]
    return statistics.median(steps) if steps else None


def main() -> None:
    """Run every arm, print the table, fail on a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 65536, 261_000])
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--window", type=int, default=4032)
    parser.add_argument("--sink", type=int, default=64)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--mem-fraction", type=float, default=0.85)
    parser.add_argument("--target-backend", default="triton")
    parser.add_argument("--draft-backends", nargs="+", default=["triton", "flashinfer"])
    parser.add_argument("--vocabulary", type=int, default=1000, help="prompt ids are drawn below this")
    parser.add_argument("--server-arguments", default="", help="for example '--load-format dummy'")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    depth, window, sink = options.depth, options.window, options.sink
    drafts = {
        "native": EngineSettings(draft_tokens=depth),
        "windowed": EngineSettings("windowed", window, sink, depth),
        "ring": EngineSettings("ring", window, sink, depth),
        "ring-unpruned": EngineSettings("ring", window, sink, depth, prune_prefill=False),
        "ring-small": EngineSettings("ring", 4 * depth, 4, depth),
    }
    arms: dict[str, tuple[EngineSettings | None, str | None]] = {"dense": (None, None)}
    for backend in options.draft_backends:
        arms |= {f"{name} {backend}": (settings, backend) for name, settings in drafts.items()}
    rng = random.Random(0)
    mixed = [[rng.randrange(5, options.vocabulary) for _ in range(n)] for n in (40, 700, 5000)]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as root:
        for name, (settings, backend) in arms.items():
            folder = Path(root) / name.replace(" ", "-")
            folder.mkdir()
            with Server(options, settings, backend, folder) as server:
                replies = server.generate(mixed, 64)
                steps = {}
                for context in options.contexts if not name.startswith("ring-small") else []:
                    before = len(server.log)
                    server.generate([[rng.randrange(5, options.vocabulary) for _ in range(context)]], 128)
                    time.sleep(1)
                    steps[context] = step_ms(server.log[before:])
                found[name] = {
                    "ids": [reply["output_ids"] for reply in replies],
                    "histograms": [
                        reply["meta_info"].get("spec_correct_drafts_histogram") for reply in replies
                    ],
                    "pool_tokens": [int(n) for n in POOL.findall(server.log)],
                    "step_ms": steps,
                    "plugin": [line for line in server.log.splitlines() if "windowed-mtp: mode=" in line],
                }
            print(name, found[name]["pool_tokens"], found[name]["step_ms"], flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    problems = []
    for backend in options.draft_backends:
        wanted = found[f"windowed {backend}"]["histograms"]
        for name in (f"windowed {backend}", f"ring {backend}", f"ring-unpruned {backend}"):
            if not found[name]["plugin"]:
                problems.append(f"{name}: the plugin's line is not in the log")
            if found[name]["histograms"] != wanted:
                problems.append(f"{name}: acceptance differs from the windowed draft's")
    for name, arm in found.items():
        differing = sum(a != b for a, b in zip(arm["ids"], found["dense"]["ids"], strict=True))
        if differing:
            # In bf16 dense and native may differ too; more than native does is the plugin's doing.
            print(f"{name}: {differing} of {len(arm['ids'])} outputs differ from dense decoding")
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
