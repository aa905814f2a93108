"""What else the machine did while a record was measured, by the environment that the record holds."""

from __future__ import annotations

from harness.records import Record

BUSY = 1.5
"""Runnable processes a core in the minute before the server started: above it others compute too."""


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
