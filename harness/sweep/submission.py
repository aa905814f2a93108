"""What a launcher would be given: the jobs of a multirun, read from the configuration that runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import OmegaConf

from harness import compose
from harness.sweep.listing import duration
from harness.sweep.multirun import launcher_of, launcher_words
from harness.sweep.naming import boot_names
from harness.sweep.plan import Plan

# Submitit's own bookkeeping, which says nothing of a job.
_UNTOLD = {
    "_target_", "submitit_folder", "name", "array_parallelism", "timeout_min", "max_num_timeout",
    "stderr_to_stdout",
}  # fmt: skip


def submission_lines(overrides: Sequence[str], plan: Plan) -> Iterator[str]:
    """The jobs that `python -m harness -m` would submit; nothing where it runs them itself."""
    launcher, jobs = launcher_of(overrides), len(plan.active)
    if launcher in ("", "basic") or not jobs:
        return
    settings = _settings(launcher_words(overrides, plan))
    at_once, limit_min = settings.get("array_parallelism"), settings.get("timeout_min")
    text = f"python -m harness -m would submit {jobs} job{'s' * (jobs != 1)} by hydra/launcher={launcher}, "
    text += "one a boot" + (f", {at_once} at a time (an array job)" if at_once else "")
    if isinstance(limit_min, int | float):
        text += f", {duration(limit_min * 60)} each"
        if again := settings.get("max_num_timeout"):
            text += f", requeued {again} times when out of time"
    yield text
    told = [f"{name}={value}" for name, value in settings.items() if name not in _UNTOLD and _is_set(value)]
    yield f"  each with {' '.join(told)}"
    names = boot_names(plan)
    for boot in plan.active:
        needed_s = boot.startup_s + boot.run_s
        if isinstance(limit_min, int | float) and needed_s > limit_min * 60:
            yield (
                f"  {names[boot.boot_id]} needs about {duration(needed_s)}, more than a job has: raise "
                "hydra.launcher.timeout_min, or let the requeued job go on"
            )


def _settings(words: Sequence[str]) -> dict[str, Any]:
    launcher = compose.load_raw(words, with_hydra=True).hydra.launcher
    return {str(name): value for name, value in OmegaConf.to_container(launcher, resolve=False).items()}  # type: ignore[union-attr]


def _is_set(value: Any) -> bool:
    return value not in (None, [], {}, "")
