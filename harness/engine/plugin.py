"""Entry point of SGLang's plugin group: called once in each of its processes."""

from __future__ import annotations

import os


def activate() -> None:
    """Register the hooks of CPU mode where the process serves on a CPU."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from harness.engine.cpu.hooks import register

    register(HookRegistry, HookType)
