"""The entry point: silent when off, and an end with a plain sentence when it cannot do its work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.engine.cpu.environment import cpu_environment
from harness.engine.plugin import activate
from harness.engine.probes.settings import ProbeSettings
from harness.engine.settings import VARIABLE, EngineSettings

SETTINGS = EngineSettings("ring", 64, 4, 7)
TRACE = ProbeSettings("trace", "/nowhere")

REGISTER = """
import sys
import sglang
{change}
from harness.engine.plugin import activate
from sglang.srt.plugins.hook_registry import HookRegistry
activate()
HookRegistry.apply_hooks()
ours = [target for target in HookRegistry._hooks if "DraftBackendFactory" in target or "EagleDraft" in target]
assert set(HookRegistry._hooks) == HookRegistry._patched, set(HookRegistry._hooks) - HookRegistry._patched
print("applied", len(ours))
"""


def in_a_server_process(change: str = "") -> subprocess.CompletedProcess[str]:
    """Activate the plugin as a traced server process on the CPU would, after `change`."""
    ours = {**SETTINGS.environment(), **TRACE.environment()}
    environment = {**os.environ, **cpu_environment(threads=1), **ours}
    return subprocess.run(
        [sys.executable, "-c", REGISTER.format(change=change)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_off_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    before = {target: len(hooks) for target, hooks in HookRegistry._hooks.items()}
    activate()
    assert {target: len(hooks) for target, hooks in HookRegistry._hooks.items()} == before


def test_damaged_settings_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setenv(VARIABLE, '{"mode": "ring", "window_tokens": -1}')
    with pytest.raises(SystemExit, match=r"windowed-mtp: .*window_tokens > 0"):
        activate()


def test_an_unknown_version_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    import sglang

    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setenv(VARIABLE, SETTINGS.environment()[VARIABLE])
    monkeypatch.setattr(sglang, "__version__", "0.5.24")
    with pytest.raises(SystemExit, match=r"install sglang==0\.5\.23"):
        activate()


def test_every_hook_applies_to_the_installed_sglang() -> None:
    done = in_a_server_process()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "applied 10" in done.stdout, "eight of the ring, two more of the trace"


def test_a_changed_signature_ends_the_process() -> None:
    change = (
        "from sglang.srt.model_executor.forward_batch_info import ForwardBatch\n"
        "ForwardBatch.init_new = classmethod(lambda cls, batch, model_runner, *, fresh: None)"
    )
    done = in_a_server_process(change)
    assert done.returncode == 1
    assert "windowed-mtp expects" in done.stderr
    assert "Traceback" not in done.stderr.split("windowed-mtp expects")[1]
