"""The machine by the environment that a record holds: is it the point's, and what else did it do?"""

from __future__ import annotations

import re

from harness.host.detect import is_called
from harness.records import Record

_PRODUCTS = ("B200", "H200", "H100", "A100")
"""GPUs that a profile's name may name."""

BUSY = 1.5
"""Runnable processes a core in the minute before the server started: above it others compute too."""


def machine_text(record: Record) -> str:
    """How the machine contradicts the point's hardware; empty where it does not, or nobody says what it was.

    A profile that names no GPU known here is not judged by its name, nor is a server at a URL, which may run
    on another machine than the one that asked it.
    """
    hardware, reported = record.point.hardware, record.server.arguments
    device = reported.get("device")
    words = re.split(r"[^A-Za-z0-9]+", hardware.upper())
    wanted = next((name for name in _PRODUCTS if name in words), "")
    if isinstance(device, str) and (hardware == "cpu") != (device == "cpu") and (wanted or hardware == "cpu"):
        return f"the server ran on {device!r}, the point is of hardware {hardware}"
    gpus = record.environment.get("gpus")
    if not wanted or not isinstance(gpus, list) or record.server.boot_id == "url":
        return ""
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)]
    if others := sorted({name for name in names if not is_called(name, wanted)}):
        return f"the machine has {', '.join(others)}, the point is of hardware {hardware}"
    # A container may run on another node than the harness, which then sees no GPU at all.
    if not names and not record.server.image:
        return f"the machine has no GPU, the point is of hardware {hardware}"
    return ""


def busy_text(record: Record) -> str:
    """Why step times may be too long; empty where nothing tells."""
    environment = record.environment
    loads, cores = environment.get("load_average"), environment.get("usable_cores")
    load = loads[0] if isinstance(loads, list) and loads else None
    gpus = environment.get("gpus")
    tenants = (
        [gpu.get("other_tenants") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    )
    shared = sum(count for count in tenants if isinstance(count, int) and count > 0)
    parts = []
    if isinstance(load, int | float) and isinstance(cores, int) and cores > 0 and load > BUSY * cores:
        parts.append(f"{load:.1f} processes wanted its {cores} cores before the server started")
    if shared:
        parts.append(f"{shared} other processes held memory of its GPUs")
    return f"the machine was busy: {'; '.join(parts)}" if parts else ""
