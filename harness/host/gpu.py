"""What NVML tells about the GPUs: names, tenants, and samples of clocks, power and memory during a run.

Everything here is empty on a machine without NVIDIA's driver. Only the GPUs that CUDA_VISIBLE_DEVICES leaves
are looked at, so that another user's load on the same node is not reported as ours.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pynvml

from harness.errors import ServerError
from harness.records import Outcome

_MIB = 1 << 20
# Reasons that make a measurement doubtful; idle and application clocks are none.
_THROTTLE_BITS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
COLUMNS = (
    "time_s",
    "gpu",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "temperature_c",
    "utilization_percent",
    "memory_used_mib",
    "throttle_reasons",
)
"""Columns of `GpuSampler.columns`, one entry a GPU and sample; None where a GPU does not tell."""


@dataclass(frozen=True)
class Gpu:
    """One visible GPU."""

    index: int
    name: str
    uuid: str
    memory_total_mib: int
    memory_used_mib: int
    process_ids: tuple[int, ...]


@contextlib.contextmanager
def _nvml() -> Iterator[bool]:
    """NVML for the duration of a block; False where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _visible_handles(environment: Mapping[str, str] | None = None) -> list[tuple[int, Any]]:
    """NVML index and handle of the GPUs that CUDA would see."""
    handles = [(i, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    wanted = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return handles
    chosen: list[tuple[int, Any]] = []
    for word in (part.strip() for part in wanted.split(",")):
        match = [
            (index, handle)
            for index, handle in handles
            if word == str(index) or (word.startswith("GPU-") and _text(_uuid(handle)).startswith(word))
        ]
        if not match:
            break  # as CUDA does: everything from the first unknown entry on is invisible
        chosen += match[:1]
    return chosen


def _uuid(handle: Any) -> Any:
    return pynvml.nvmlDeviceGetUUID(handle)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def visible_gpus() -> list[Gpu]:
    """The GPUs that a server started now would see; empty without a driver."""
    with _nvml() as present:
        if not present:
            return []
        try:
            return [_describe(index, handle) for index, handle in _visible_handles()]
        except pynvml.NVMLError:
            return []


def _describe(index: int, handle: Any) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        pids = tuple(sorted(int(p.pid) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    except pynvml.NVMLError:
        pids = ()
    return Gpu(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(_uuid(handle)),
        memory_total_mib=int(memory.total) // _MIB,
        memory_used_mib=int(memory.used) // _MIB,
        process_ids=pids,
    )


def gpu_names() -> list[str]:
    """Product names of the visible GPUs."""
    return [gpu.name for gpu in visible_gpus()]


def driver_version() -> str | None:
    """NVIDIA's driver version; None without a driver."""
    with _nvml() as present:
        if not present:
            return None
        try:
            return _text(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return None


def memory_used_mib() -> dict[str, int]:
    """Memory in use by GPU UUID: the baseline to come back to after a server."""
    return {gpu.uuid: gpu.memory_used_mib for gpu in visible_gpus()}


def wait_for_baseline(baseline: Mapping[str, int], timeout_s: float, tolerance_mib: int = 512) -> None:
    """Return once no GPU holds more than `tolerance_mib` above its baseline.

    Raises:
        ServerError: memory is still held; a next server would start with less than it should have.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        now = memory_used_mib()
        over = {uuid: now[uuid] - mib for uuid, mib in baseline.items() if uuid in now}
        over = {uuid: mib for uuid, mib in over.items() if mib > tolerance_mib}
        if not over:
            return
        if time.monotonic() > deadline:
            held = ", ".join(f"{mib} MiB on {uuid}" for uuid, mib in sorted(over.items()))
            raise ServerError(
                f"GPU memory did not come back within {timeout_s:.0f} s of the server's end ({held} more "
                "than before its start): look for left-over processes with `python -m harness.doctor`",
                Outcome.SERVER_DIED,
            )
        time.sleep(0.5)


class GpuSampler:
    """Samples the visible GPUs in a thread while it is entered. Without a driver it records nothing.

    Args:
        interval_s: time between samples; NVML itself refreshes power about every 0.1 s.
    """

    def __init__(self, interval_s: float = 0.5) -> None:
        if interval_s <= 0:
            raise ValueError(f"interval_s={interval_s} must be positive")
        self._interval_s = interval_s
        self._rows: list[tuple[Any, ...]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuSampler:
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def columns(self) -> dict[str, list[Any]]:
        """Samples so far as columns (`COLUMNS`), for a record; an empty mapping where there are none."""
        rows = list(self._rows)
        if not rows:
            return {}
        return {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}

    def _run(self) -> None:
        with _nvml() as present:
            if not present:
                return
            try:
                handles = _visible_handles()
            except pynvml.NVMLError:
                return
            while handles:
                now = round(time.time(), 3)
                self._rows += [(now, index, *_sample(handle)) for index, handle in handles]
                if self._stop.wait(self._interval_s):
                    return


def _sample(handle: Any) -> tuple[Any, ...]:
    """One GPU's row of `COLUMNS` without time and index; memory in MiB, power in W."""
    return (
        _ask(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))),
        _ask(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))),
        _ask(lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1)),
        _ask(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        _ask(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        _ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) // _MIB),
        _ask(lambda: throttle_names(int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))),
    )


def _ask(question: Any) -> Any:
    """The answer, or None where this GPU does not give one."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def throttle_names(bits: int) -> str:
    """Names of the throttle reasons set in NVML's bit mask, joined by `+`; empty for none."""
    return "+".join(name for bit, name in _THROTTLE_BITS.items() if bits & bit)
