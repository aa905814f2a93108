"""A process that doesn't serve on a CPU sees none of this; one that does sees all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness.engine.cpu import hooks
from harness.engine.cpu.environment import KERNELS_PATH, cpu_environment
from harness.errors import ConfigError

JOB = """
import importlib.util, json, sys
import torch
untouched = [torch.nn.functional.linear]  # not by name: the registry patches aliases too
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
spec = importlib.util.find_spec("sgl_kernel")
print("RESULT" + json.dumps({
    "hooked": sorted(HookRegistry._hooks),
    "patched": sorted(HookRegistry._patched),
    "path": sys.path,
    "sgl_kernel": spec.origin if spec else None,
    "linear_is_torch's": torch.nn.functional.linear is untouched[0],
    "modules": [name for name in sys.modules if name.startswith("harness.engine.cpu")],
    "threads": torch.get_num_threads(),
    "operators": sorted(vars(torch.ops.sgl_kernel)) if "sgl_kernel" in sys.modules else [],
}))
"""


def inspect(**variables: str) -> dict:
    """Load the plugins in a fresh process with nothing of ours in the environment but `variables`."""
    ours = {*cpu_environment(1, tp=2, interpret_triton=True), "WINDOWED_MTP"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= variables
    # several of SGLang's modules look for a GPU when imported; without one they only warn
    job = subprocess.run(
        [sys.executable, "-c", JOB], env={**environment, "SGLANG_PLUGINS": "windowed_mtp"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    results = [line for line in job.stdout.splitlines() if line.startswith("RESULT")]
    assert results, job.stderr
    return json.loads(results[0].removeprefix("RESULT"))


def test_nothing_is_patched_off_cpu() -> None:
    seen = inspect()
    assert seen["hooked"] == []
    assert seen["patched"] == []
    assert seen["linear_is_torch's"]
    assert str(KERNELS_PATH) not in seen["path"]
    assert seen["sgl_kernel"] is None or not seen["sgl_kernel"].startswith(str(KERNELS_PATH))
    assert seen["modules"] == []
    assert seen["operators"] == []


def test_the_variable_must_say_yes() -> None:
    assert inspect(SGLANG_USE_CPU_ENGINE="0")["hooked"] == []


def test_every_hook_is_applied_on_cpu() -> None:
    seen = inspect(**cpu_environment(2))
    assert len(seen["hooked"]) == 17
    assert any(name.endswith("_verify_uses_greedy") for name in seen["hooked"]), seen["hooked"]
    assert seen["patched"] == seen["hooked"]
    assert not seen["linear_is_torch's"]
    assert seen["sgl_kernel"] == str(KERNELS_PATH / "sgl_kernel" / "__init__.py")
    assert seen["threads"] == 2


class Registry:
    """SGLang's, as far as the hooks see it: it applies all but the one that fails."""

    def __init__(self) -> None:
        self._hooks: dict[str, object] = {}
        self._patched: set[str] = set()

    def register(self, target: str, hook: object, kind: str) -> None:
        self._hooks[target] = hook
        self._patched.add(target)


def test_a_hook_that_was_not_applied_ends_the_process() -> None:
    registry = Registry()
    kinds = {name: name.lower() for name in ("AROUND", "BEFORE", "AFTER", "REPLACE")}
    hooks.register(registry, SimpleNamespace(**kinds))
    check = registry._hooks["sglang.srt.server_args.ServerArgs.check_server_args"]
    check(None, object())
    registry._patched.discard("torch.nn.functional.linear")
    with pytest.raises(ConfigError, match=r"did not apply the hooks on torch\.nn\.functional\.linear"):
        check(None, object())
