"""The environment of a measurement, for its record: a fixed list of facts, never a dump of variables."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from harness.host import gpu
from harness.host.commands import output_of

PACKAGES = (
    "windowed-mtp", "sglang", "torch", "triton", "transformers", "tokenizers", "flashinfer-python",
    "sgl-kernel", "numpy", "hydra-core", "pydantic", "safetensors",
)  # fmt: skip
# Settings that change speed or results. No other variable is ever stored: they may hold secrets.
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_P2P_DISABLE",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TRITON_INTERPRET", "TORCHDYNAMO_DISABLE",
    "SGLANG_USE_CPU_ENGINE", "SGLANG_CPU_OMP_THREADS_BIND", "SGLANG_PLUGINS", "SGLANG_SIMULATE_ACC_LEN",
    "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_PARTITION",
)  # fmt: skip


def capture_environment(elsewhere: bool = False) -> dict[str, Any]:
    """What a record says of the machine and the software, as plain JSON values.

    Args:
        elsewhere: the server runs on another machine: what is read here is of its client, under that name.
    """
    here = _here()
    if not elsewhere:
        return here
    harness = {"git": here.pop("git"), "harness_versions": here.pop("versions")}
    return {**harness, "client": here}


def _here() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    gpus = gpu.visible_gpus()
    return {
        **_fixed(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "memory_available_mib": memory.available >> 20,
        "gpus": [
            {
                "index": g.index,
                "name": g.name,
                "memory_total_mib": g.memory_total_mib,
                "memory_used_mib": g.memory_used_mib,
                "other_tenants": len(g.process_ids),
            }
            for g in gpus
        ],
        "driver": gpu.driver_version(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


@functools.cache
def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count() or 1


def _fixed() -> dict[str, Any]:
    """What does not change while this process runs."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable_cores(),
        "cpu_quota_cores": _cpu_quota(),
        "memory_total_mib": psutil.virtual_memory().total >> 20,
        "memory_limit_mib": memory_limit_mib(),
        "container": container_kind(),
        "versions": package_versions(),
        "git": git_state(Path(__file__).resolve().parent),
    }


def package_versions() -> dict[str, str]:
    """Installed versions of `PACKAGES`; a package that is not installed is left out."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None outside a checkout or without git."""
    commit = _git(directory, "rev-parse", "HEAD")
    # An installed copy may lie inside some other project's checkout.
    tracked = _git(directory, "ls-files", "--error-unmatch", str(Path(__file__).resolve()))
    if commit is None or tracked is None:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes) if changes is not None else None}


def _git(directory: Path, *arguments: str) -> str | None:
    # A status must not take the lock that a commit elsewhere waits for.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    said = output_of(["git", "-C", str(directory), *arguments], 20, environment)
    return None if said is None else said.strip()


def cpu_model() -> str:
    """Marketing name of the processor, or what the platform says."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _first_number(*paths: str) -> int | None:
    """The first file that holds a plain number; control groups say `max` for no limit."""
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            return int(Path(path).read_text().split()[0])
    return None


def memory_limit_mib() -> int | None:
    """The control group's memory limit; None for none."""
    limit = _first_number("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    # Version 1 writes "no limit" as a number near 2^63.
    return limit >> 20 if limit is not None and limit < 1 << 60 else None


def _cpu_quota() -> float | None:
    """Cores that the control group grants; None for no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return round(int(quota) / int(period), 2)
    return None


def container_kind() -> str | None:
    """A hint at the container this runs in (docker, podman, enroot, apptainer, kubernetes), else None."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    for variable, kind in (
        ("ENROOT_ROOTFS", "enroot"),
        ("APPTAINER_CONTAINER", "apptainer"),
        ("SINGULARITY_CONTAINER", "apptainer"),
        ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ):
        if variable in os.environ:
            return kind
    return None
