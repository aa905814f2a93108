"""Probes of a running server: what each records, and the dispatch from settings to hooks.

A probe is a class made of its settings, with `register(registry, hook_type)`; its module is imported only
where it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from harness.engine.probes.settings import ProbeSettings

_CLASSES = {"trace": "TraceHooks", "decision": "DecisionProbe", "attention_mass": "AttentionMassProbe"}


def register(settings: ProbeSettings, registry: Any, hook_type: Any) -> None:
    """Register the hooks of the probe that `settings` name; nothing where it is off.

    Args:
        registry: SGLang's `HookRegistry`.
        hook_type: SGLang's `HookType`.

    Raises:
        ConfigError: this SGLang differs from the one the probe was written for.
    """
    if settings.active:
        module = import_module(f"{__name__}.{settings.kind}")
        getattr(module, _CLASSES[settings.kind])(settings).register(registry, hook_type)
