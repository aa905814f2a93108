"""Entry point of SGLang's plugin group: called once in each of its processes."""

from __future__ import annotations

import os

from harness.engine.probes.settings import ProbeSettings
from harness.engine.probes.settings import from_environment as probe_from_environment
from harness.engine.settings import EngineSettings, from_environment
from harness.errors import ConfigError


def activate() -> None:
    """Register the hooks of CPU mode where the process serves on a CPU, of the windowed draft, of a probe.

    Raises:
        SystemExit: settings, SGLang's version or a signature is not what the hooks need. SGLang catches any
            `Exception` of a plugin and would serve without it.
    """
    try:
        if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
            _register_cpu_mode()
        settings = from_environment()
        if settings.active:
            _register_draft_hooks(settings)
        probe = probe_from_environment()
        if probe.active:
            _register_probe(probe)
    except ConfigError as error:
        raise SystemExit(f"windowed-mtp: {error}") from error


def _register_cpu_mode() -> None:
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from harness.engine.compat import require_version
    from harness.engine.cpu.hooks import register

    require_version(sglang.__version__)
    register(HookRegistry, HookType)


def _register_draft_hooks(settings: EngineSettings) -> None:
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from harness.engine.compat import require_version
    from harness.engine.hooks import DraftHooks

    require_version(sglang.__version__)
    DraftHooks(settings).register(HookRegistry, HookType)


def _register_probe(settings: ProbeSettings) -> None:
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from harness.engine import probes
    from harness.engine.compat import require_version

    require_version(sglang.__version__)
    probes.register(settings, HookRegistry, HookType)
