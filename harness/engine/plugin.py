"""Entry point of SGLang's plugin group: called once in each of its processes."""

from __future__ import annotations

import os

from harness.engine.settings import EngineSettings, from_environment
from harness.errors import ConfigError


def activate() -> None:
    """Register the hooks of CPU mode where the process serves on a CPU, and those of the windowed draft.

    Raises:
        SystemExit: settings, SGLang's version or a signature is not what the hooks need. SGLang catches any
            `Exception` of a plugin and would serve without it.
    """
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        _register_cpu_mode()
    try:
        settings = from_environment()
        if settings.active:
            _register_draft_hooks(settings)
    except ConfigError as error:
        raise SystemExit(f"windowed-mtp: {error}") from error


def _register_cpu_mode() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from harness.engine.cpu.hooks import register

    register(HookRegistry, HookType)


def _register_draft_hooks(settings: EngineSettings) -> None:
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from harness.engine.compat import require_version
    from harness.engine.hooks import DraftHooks

    require_version(sglang.__version__)
    DraftHooks(settings).register(HookRegistry, HookType)
