"""Which hardware profile (`conf/hardware/`) this machine is."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import ConfigError

# Part of the NVML product name -> profile. H200 before H100: names never contain each other, but GH200 does
# contain H200 and is another machine.
_PROFILES = (("GH200", None), ("B200", "b200"), ("H200", "h200"), ("H100", "h100"))


def profile_for(gpu_names: Sequence[str]) -> str:
    """Profile name for the GPUs that NVML lists; `cpu` for none.

    Raises:
        ConfigError: GPUs without a profile, or of several kinds.
    """
    if not gpu_names:
        return "cpu"
    found = {_profile(name) for name in gpu_names}
    if len(found) > 1:
        raise ConfigError(
            f"this machine has different GPUs ({', '.join(sorted(set(gpu_names)))}): "
            "pick some by CUDA_VISIBLE_DEVICES and name the profile, hardware=..."
        )
    profile = found.pop()
    if profile is None:
        raise ConfigError(
            f"no hardware profile knows {gpu_names[0]}: copy conf/hardware/h100.yaml, adapt it and pass "
            "hardware=<its name>, or hardware=cpu for the CPU engine"
        )
    return profile


def is_called(gpu_name: str, part: str) -> bool:
    """Whether a product name has `part` as a word: an `NVIDIA GH200` is no `H200`."""
    return part.upper() in gpu_name.upper().replace("-", " ").replace("_", " ").split()


def without_gpus(found: Sequence[str], part: str, number: int = 1) -> str:
    """Why a machine cannot run what a hardware profile is for; empty where it can, or where none is named.

    Args:
        found: names of its GPUs.
        part: the profile's `gpu_name_contains`.
        number: how many GPUs a server needs.
    """
    others = sorted({name for name in found if not is_called(name, part)})
    if part and others:
        return (
            f"the hardware profile is for {part} GPUs and this machine has {', '.join(others)}: choose the "
            "profile by hardware=, or leave it out to have it detected"
        )
    if part and len(found) < number:
        has = f"only {len(found)} of {number} {part} GPUs are" if found else f"no {part} GPU is"
        return f"{has} to be seen on this machine: run it where they are, or choose hardware=cpu"
    return ""


def _profile(gpu_name: str) -> str | None:
    return next((profile for part, profile in _PROFILES if is_called(gpu_name, part)), None)


def detect_hardware() -> str:
    """The profile of this machine: b200, h200, h100 or cpu.

    Raises:
        ConfigError: as `profile_for`.
    """
    from harness.host.gpu import gpu_names  # noqa: PLC0415  (keeps NVML out of callers that never ask)

    return profile_for(gpu_names())
