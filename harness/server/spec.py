"""What one server lifetime (a boot) is made of, and the command that starts it."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson

from harness.engine.cpu.environment import cpu_environment, cpu_server_arguments
from harness.engine.probes.settings import NATIVE_ONLY, Kind, ProbeSettings
from harness.engine.settings import EngineSettings
from harness.points import WINDOWED_ARMS, Arm
from harness.server import profilers
from harness.server.containers import Container


@dataclass(frozen=True)
class ServerSpec:
    """Settings of one server; equal specs can share a server.

    `context_length` is the server's admission limit in tokens, not the prompt's length.
    `gpu_name_contains` is part of the product name of the GPUs that the numbers will be said to come from.
    `max_total_tokens` fixes the KV pool; None lets `mem_fraction_static` (or the engine) size it.
    `probe` names what the server records besides (see `harness.engine.probes`), `probe_windows` the
    (W, n_sink) pairs that it compares with, `profiler` what takes kernel times of a trace: torch or nsys.
    `settings` are those that no point names, for records (`harness.sweep.unkeyed`). `model_names` are what a
    running server may call the model.
    """

    model_path: str
    device: str
    arm: Arm
    depth: int
    window_tokens: int | None
    sink_tokens: int | None
    tp: int
    dtype: str
    kv_dtype: str
    target_backend: str
    draft_backend: str
    context_length: int
    max_running_requests: int
    chunked_prefill_tokens: int
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    prune_draft_prefill: bool = False
    threads: int | None = None
    gpu_name_contains: str = ""
    trust_remote_code: bool = False
    python: str = sys.executable
    extra_arguments: tuple[str, ...] = ()
    container: Container | None = None
    probe: str | None = None
    probe_windows: tuple[tuple[int, int], ...] = ()
    profiler: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    model_names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """12 hex digits that name the boot in logs and folders."""
        body = orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(body).hexdigest()[:12]

    @property
    def label(self) -> str:
        """A short name for progress lines."""
        window = f" W={self.window_tokens}+{self.sink_tokens}" if self.window_tokens is not None else ""
        depth = f" d={self.depth}" if self.arm != "dense" else ""
        return f"{self.arm}{depth}{window} TP{self.tp}"

    def engine_settings(self) -> EngineSettings:
        """What the plugin inside the server is told; mode off for dense and native."""
        if self.arm == "dense":
            return EngineSettings()
        if self.arm not in WINDOWED_ARMS:
            return EngineSettings(draft_tokens=self.depth)
        return EngineSettings(
            mode="ring" if self.arm == "ring" else "windowed",
            window_tokens=self.window_tokens or 0,
            sink_tokens=self.sink_tokens or 0,
            draft_tokens=self.depth,
            prune_prefill=self.prune_draft_prefill,
        )

    def probe_settings(self, directory: Path | None) -> ProbeSettings:
        """What the probe inside the server is told; off without one.

        Args:
            directory: where it writes, made for one server start.

        Raises:
            ConfigError: an unknown probe, or one without a directory.
        """
        if self.probe is None:
            return ProbeSettings()
        return ProbeSettings(
            kind=cast(Kind, self.probe),
            directory=str(directory or ""),
            windows=self.probe_windows,
            nvtx=self.profiler == "nsys",
        )

    def environment(self, probe_directory: Path | None = None) -> dict[str, str]:
        """Variables to add to the server's environment."""
        variables = {"SGLANG_PLUGINS": "windowed_mtp"}
        if self.device == "cpu":
            variables |= cpu_environment(threads=self.threads or 1, tp=self.tp, dtype=self.dtype)
        if self.profiler is not None:
            variables |= profilers.VARIABLES
        variables |= self.engine_settings().environment()
        return variables | self.probe_settings(probe_directory).environment()

    def command(self, port: int | str, host: str = "127.0.0.1") -> list[str]:
        """The argument list that starts the server on `port`."""
        arguments = {
            "--model-path": self.model_path,
            "--host": host,
            "--port": port,
            "--dtype": self.dtype,
            "--kv-cache-dtype": _kv_dtype_argument(self.kv_dtype, self.dtype, self.device),
            "--tp-size": self.tp,
            "--context-length": self.context_length,
            "--max-running-requests": self.max_running_requests,
            "--max-total-tokens": self.max_total_tokens,
            "--mem-fraction-static": self.mem_fraction_static,
            "--chunked-prefill-size": self.chunked_prefill_tokens,
            "--page-size": 1,
            "--attention-backend": self.target_backend if self.device != "cpu" else None,
            "--decode-log-interval": 1,
            "--random-seed": 0,
        }
        command = [self.python, "-m", "sglang.launch_server"]
        for name, value in arguments.items():
            if value is not None:
                command += [name, str(value)]
        command += ["--skip-tokenizer-init", "--disable-radix-cache"]
        if self.trust_remote_code:
            command.append("--trust-remote-code")
        if self.probe in NATIVE_ONLY and self.device != "cpu":
            command.append("--disable-cuda-graph")
        if self.device == "cpu":
            command += cpu_server_arguments(self.target_backend)
        backend = self.draft_backend if self.device != "cpu" else None
        command += self.engine_settings().server_arguments(backend)
        return command + list(self.extra_arguments)

    def describe(self) -> dict[str, Any]:
        """The spec as plain values, for records."""
        return asdict(self)


def _kv_dtype_argument(kv_dtype: str, dtype: str, device: str) -> str:
    # The CPU engine takes the KV dtype from the model's.
    return "auto" if device == "cpu" and kv_dtype == dtype else kv_dtype
