"""`python -m harness.doctor`: is this machine ready for a study? One line a check, with what to do.

Exit status 0 when nothing fails (warnings allowed), 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console

from generators.chat import find_template, read_config
from harness import labels
from harness.checkpoints import located, opened
from harness.commandline import guarded, place
from harness.compose import Cell, load
from harness.config import HardwareConfig, RunConfig
from harness.errors import ConfigError, HarnessError
from harness.host import gpu
from harness.host.detect import profile_for, without_gpus
from harness.host.environment import container_kind, memory_limit_mib
from harness.models.checkpoint import Checkpoint, open_checkpoint, preflight
from harness.printable import printable
from harness.server.launch import BOOT_MARK
from harness.server.processes import free_port, left_behind
from harness.server.runtimes import runtime_problem
from harness.sweep.cells import expand
from harness.sweep.multirun import normalised

Level = Literal["ok", "warn", "fail"]
SGLANG_VERSION = "0.5.23"
PLUGIN_GROUP, PLUGIN_NAME = "sglang.srt.plugins", "windowed_mtp"
_COLOURS: dict[Level, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
_MIN_FREE_GIB = 20
_MIN_SHM_MIB = 1024
_MIN_MEMORY_GIB = 8
_IDLE_GPU_MIB = 1024
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


@dataclass(frozen=True)
class Finding:
    """One line of the report; `advice` is empty where nothing is to be done."""

    check: str
    level: Level
    text: str
    advice: str = ""


def check_driver() -> list[Finding]:
    """NVIDIA's driver and the hardware profile."""
    gpus = gpu.visible_gpus()
    version = gpu.driver_version()
    if version is None:
        return [Finding("driver", "ok", "no NVIDIA driver: SGLang's CPU engine will be used (hardware=cpu)")]
    if not gpus:
        advice = "check CUDA_VISIBLE_DEVICES and the container's --gpus option"
        return [Finding("driver", "fail", f"driver {version} and no visible GPU", advice)]
    text = f"driver {version}, {len(gpus)} x {gpus[0].name}"
    try:
        profile = profile_for([g.name for g in gpus])
    except HarnessError as error:
        advice = f"hardware=auto finds no profile, so every command has to name one: {error}"
        return [Finding("driver", "warn", text, advice)]
    return [Finding("driver", "ok", f"{text} (hardware={profile})")]


def check_profile(hardware: HardwareConfig) -> list[Finding]:
    """Whether this machine has the GPUs of the hardware profile that was named."""
    if hardware.device == "cpu":
        return [Finding("hardware", "ok", f"hardware={hardware.name} needs no GPU")]
    reason = without_gpus(gpu.gpu_names(), hardware.gpu_name_contains, max(1, hardware.gpus))
    if reason:
        return [Finding("hardware", "fail", f"hardware={hardware.name}", reason)]
    return [Finding("hardware", "ok", f"hardware={hardware.name} fits this machine")]


def check_gpu_tenants() -> list[Finding]:
    """Whether somebody else uses the GPUs."""
    found = []
    for g in gpu.visible_gpus():
        where = f"GPU {g.index}"
        if g.process_ids:
            pids = ", ".join(map(str, g.process_ids))
            advice = "wait for them, or leave this GPU out with CUDA_VISIBLE_DEVICES"
            found.append(Finding("gpu tenants", "fail", f"{where} is used by processes {pids}", advice))
        elif g.memory_used_mib > _IDLE_GPU_MIB:
            text = f"{where} holds {g.memory_used_mib} MiB although no process shows"
            advice = (
                "a large KV pool may not fit, and step times are not an idle GPU's: another container or "
                "a dead process holds it, ask who uses the node"
            )
            found.append(Finding("gpu tenants", "warn", text, advice))
        else:
            free = g.memory_total_mib - g.memory_used_mib
            found.append(Finding("gpu tenants", "ok", f"{where} is idle, {free} MiB free"))
    return found


def check_memory() -> list[Finding]:
    """Host memory, within the control group's limit."""
    memory = psutil.virtual_memory()
    limit = memory_limit_mib()
    available = memory.available >> 20
    if limit is not None and limit < memory.total >> 20:
        available = min(available, limit)
    text = f"{available / 1024:.1f} GiB of host memory available"
    if available < _MIN_MEMORY_GIB * 1024:
        advice = "a server may be killed while it loads: free memory, or end what uses it"
        return [Finding("memory", "warn", text, advice)]
    return [Finding("memory", "ok", text)]


def check_disk(results: Path) -> list[Finding]:
    """Room for records where they will be written."""
    place = results.resolve()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        return [Finding("disk", "fail", f"{place} cannot be written", "set results= to another place")]
    free_gib = shutil.disk_usage(place).free / (1 << 30)
    text = f"{free_gib:.1f} GiB free at {place}"
    if free_gib < 1:
        return [Finding("disk", "fail", text, "free space or set results= to another disk")]
    level: Level = "ok" if free_gib >= _MIN_FREE_GIB else "warn"
    advice = (
        f"a study with traces writes up to {_MIN_FREE_GIB} GiB, and a full disk ends it: free space, or set "
        "results= to another disk"
    )
    return [Finding("disk", level, text, "" if level == "ok" else advice)]


def check_shared_memory() -> list[Finding]:
    """/dev/shm, through which the server's processes and NCCL talk."""
    shm = Path("/dev/shm")
    if not shm.is_dir():
        advice = "servers with tp above 1 fail without it: mount a tmpfs there; tp=1 needs nothing"
        return [Finding("/dev/shm", "warn", "there is none", advice)]
    free_mib = shutil.disk_usage(shm).free >> 20
    text = f"{free_mib} MiB free in /dev/shm"
    if free_mib < _MIN_SHM_MIB:
        advice = (
            "servers with tp above 1 may fail to start: run this container with --shm-size 32g or --ipc host"
        )
        return [Finding("/dev/shm", "warn", text, advice)]
    return [Finding("/dev/shm", "ok", text)]


def check_ports() -> list[Finding]:
    """A free port on the loopback interface, and servers left behind by an earlier run."""
    try:
        found = [Finding("ports", "ok", f"port {free_port()} is free")]
    except HarnessError as error:
        found = [Finding("ports", "fail", str(error))]
    left = left_behind(BOOT_MARK)
    if left:
        pids = " ".join(str(process.pid) for process in left)
        text = f"processes {pids} are left from servers of an earlier run"
        advice = f"they hold memory and slow what is measured: end them, kill -9 {pids}"
        found.append(Finding("servers", "warn", text, advice))
    else:
        found.append(Finding("servers", "ok", "none left from an earlier run"))
    return found


def check_containers(kind: str = "local") -> list[Finding]:
    """Runtimes for server=docker and server=enroot; none is needed for server=local."""
    found = [name for name in ("docker", "podman", "enroot", "srun") if shutil.which(name)]
    inside = container_kind()
    text = f"found {', '.join(found)}" if found else "none found: server=local works without"
    text += f"; this runs inside {inside}" if inside else ""
    if problem := runtime_problem(kind):
        return [Finding("containers", "fail", text, problem)]
    if "docker" in found and (problem := runtime_problem("docker")):
        advice = f"server=docker cannot run, the other kinds can: {problem}"
        return [Finding("containers", "warn", text, advice)]
    return [Finding("containers", "ok", text)]


def check_sglang() -> list[Finding]:
    """The server's version."""
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        advice = f"pip install sglang=={SGLANG_VERSION}, or use server=docker or server=url"
        return [Finding("sglang", "fail", "not installed here", advice)]
    if version != SGLANG_VERSION:
        advice = f"pip install sglang=={SGLANG_VERSION}: the plugin refuses other versions"
        return [Finding("sglang", "fail", f"version {version}", advice)]
    return [Finding("sglang", "ok", f"version {version}")]


def check_plugin() -> list[Finding]:
    """Whether SGLang's processes will find the plugin."""
    names = {entry.name for entry in metadata.entry_points(group=PLUGIN_GROUP)}
    if PLUGIN_NAME in names:
        return [Finding("plugin", "ok", f"{PLUGIN_NAME} is registered with SGLang")]
    return [
        Finding("plugin", "fail", "windowed_mtp is not registered", "pip install -e . in this environment")
    ]


def check_checkpoint(source: str, config: RunConfig | None = None) -> list[Finding]:
    """The checkpoint, its MTP head and its tokenizer.

    Args:
        config: the run that would use it: whether the checkpoint is the model that it names.
    """
    try:
        if config is None:
            checkpoint = open_checkpoint(source, download=False)
        else:
            checkpoint = opened(config, download=False)
            labels.check(Cell(config, checkpoint))
        problems = preflight(checkpoint, speculative=True)
        architecture = checkpoint.architecture
    except HarnessError as error:
        return [Finding("checkpoint", "fail", str(error))]
    found = [Finding("checkpoint", "fail", problem.message) for problem in problems]
    if not found:
        text = (
            f"{source}: {_size(checkpoint.weights.size_bytes)}, F = "
            f"{architecture.full_attention_layers}, {architecture.mtp_layers} MTP layer(s) with weights, "
            f"fingerprint {checkpoint.fingerprint}"
        )
        found.append(Finding("checkpoint", "ok", text))
    return [*found, _tokenizer(checkpoint)]


def _size(size_bytes: int) -> str:
    return (
        f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.1f} MiB"
    )


def _tokenizer(checkpoint: Checkpoint) -> Finding:
    files = [name for name in _TOKENIZER_FILES if (checkpoint.path / name).is_file()]
    if "tokenizer.json" in files:
        if checkpoint.tokenizer_problem:
            return Finding("tokenizer", "fail", checkpoint.tokenizer_problem)
        if find_template(checkpoint.path, read_config(checkpoint.path)) is None:
            advice = (
                "right for a base model; a chat model is measured off its format and ends early: fetch "
                "tokenizer_config.json or chat_template.jinja"
            )
            text = f"{checkpoint.path} has no chat template: prompts are sent as plain text"
            return Finding("tokenizer", "warn", text, advice)
        return Finding("tokenizer", "ok", f"tokenizer.json in {checkpoint.path}")
    if files:
        return Finding(
            "tokenizer",
            "warn",
            f"only {files[0]}",
            "no prompt can be built for it: convert it to a fast tokenizer (tokenizer.json)",
        )
    return Finding(
        "tokenizer", "fail", f"none in {checkpoint.path}", "download the checkpoint's tokenizer files"
    )


def examine(
    results: Path, checkpoint: str, config: RunConfig | None = None, models: Sequence[RunConfig] = ()
) -> list[Finding]:
    """All checks; one that breaks is a failed line, never a traceback.

    Args:
        checkpoint: looked at where `models` are none.
        config: what a run would be, where overrides were given: its hardware and server are looked at.
        models: a configuration for each checkpoint that the run would use.
    """
    kind = config.server.kind if config is not None else "local"
    checks: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("driver", check_driver),
        ("gpu tenants", check_gpu_tenants),
        ("memory", check_memory),
        ("disk", lambda: check_disk(results)),
        ("/dev/shm", check_shared_memory),
        ("ports", check_ports),
        ("containers", lambda: check_containers(kind)),
        ("sglang", check_sglang),
        ("plugin", check_plugin),
    ]
    for model in models:
        checks.append(("checkpoint", partial(check_checkpoint, model.model.path, model)))
    if not models:
        checks.append(("checkpoint", partial(check_checkpoint, checkpoint)))
    if config is not None and kind in ("local", "docker"):
        hardware = config.hardware
        checks.insert(1, ("hardware", lambda: check_profile(hardware)))
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check()
        except (OSError, ValueError, psutil.Error, HarnessError) as error:
            findings.append(Finding(name, "fail", f"the check itself failed: {error}"))
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.doctor", description=__doc__)
    parser.add_argument("--results", type=place, help="where records will be written (default: results)")
    parser.add_argument(
        "--checkpoint", help="directory, Hugging Face id or package:tiny (default: that of model=)"
    )
    parser.add_argument("overrides", nargs="*", help="as for python -m harness: model=NAME results=DIR")
    options = parser.parse_args(arguments)
    return guarded(lambda: _report(options), failure=1)


def _report(options: argparse.Namespace) -> int:
    results, config, models = options.results, None, []
    findings: list[Finding] = []
    if options.overrides:
        overrides = normalised(options.overrides)
        config = load(overrides)
        results = results or Path(config.results)
        if options.checkpoint is None:
            try:
                models = _models(config, overrides)
            except ConfigError as error:  # the machine is looked at all the same
                findings.append(Finding("settings", "fail", str(error)))
    console = Console()
    findings += examine(results or Path("results"), options.checkpoint or "package:tiny", config, models)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        console.print(f"{finding.level:<4}", style=_COLOURS[finding.level], end=" ", highlight=False)
        line = f"{finding.check:<{width}}  {finding.text}" + (
            f" -> {finding.advice}" if finding.advice else ""
        )
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _models(config: RunConfig, overrides: Sequence[str]) -> list[RunConfig]:
    """One configuration for each checkpoint of a run: an experiment may need several."""
    if config.experiment is None:
        return [located(config)]
    return list({cell.config.model.path: cell.config for cell in expand(config, overrides)}.values())
