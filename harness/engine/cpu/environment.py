"""Environment and arguments of a server process that runs without a GPU.

Imports neither torch nor SGLang, so that the launcher can ask for them cheaply.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import ConfigError

KERNELS_PATH = Path(__file__).resolve().parent / "pythonpath"
"""Folder that holds the plain-PyTorch `sgl_kernel`; first on the import path of CPU servers only."""


def cpu_environment(
    threads: int, tp: int = 1, interpret_triton: bool = False, dtype: str | None = None
) -> dict[str, str]:
    """Variables to add to the environment of a CPU server.

    Args:
        threads: OpenMP threads of the whole server. Each of the `tp` ranks gets an equal share, at least
            one: threads beyond the free cores spin and make a server several times slower.
        tp: tensor-parallel ranks.
        interpret_triton: run Triton kernels through Triton's interpreter (slow; for
            `--attention-backend triton` without a GPU).
        dtype: the server's `--dtype`. SGLang keeps convolution states in bfloat16 whatever the model's
            dtype; "float32" makes them float32 too.

    Raises:
        ConfigError: `threads` or `tp` is below one.
    """
    if threads < 1 or tp < 1:
        raise ConfigError(f"A CPU server needs threads >= 1 and tp >= 1, not threads={threads}, tp={tp}.")
    share = max(1, threads // tp)
    inherited = os.environ.get("PYTHONPATH", "")
    kernels = str(KERNELS_PATH)
    search_path = [kernels, *(p for p in inherited.split(os.pathsep) if p and p != kernels)]
    variables = {
        "PYTHONPATH": os.pathsep.join(search_path),
        "SGLANG_USE_CPU_ENGINE": "1",
        # On a GPU node SGLang would otherwise pick CUDA kernels for tensors that live on the CPU.
        "CUDA_VISIBLE_DEVICES": "",
        # Compiling on first use makes the first request wait for tens of seconds and gains little here.
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": str(share),
        "MKL_NUM_THREADS": str(share),
        # Idle OpenMP threads must sleep: several processes share few cores.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if tp > 1:
        variables["SGLANG_CPU_OMP_THREADS_BIND"] = _cores_per_rank(share, tp)
    if dtype == "float32":
        variables["SGLANG_MAMBA_CONV_DTYPE"] = dtype
    if interpret_triton:
        variables["TRITON_INTERPRET"] = "1"
    return variables


def cpu_server_arguments(attention_backend: str = "intel_amx") -> list[str]:
    """Command-line arguments that CPU mode always needs.

    `intel_amx` is the one CPU attention backend with a multi-step draft; `triton` works when interpreted.
    Overlap scheduling is off for every arm because SGLang has none for speculative decoding on CPU, and
    arms must differ in the draft only. An idle scheduler sleeps: it would otherwise spin on a core that the
    next server, or the harness itself, computes with.
    """
    return [
        "--device", "cpu",
        "--attention-backend", attention_backend,
        "--disable-overlap-schedule",
        "--sleep-on-idle",
        "--cuda-graph-backend-decode", "disabled",
        "--cuda-graph-backend-prefill", "disabled",
    ]  # fmt: skip


def _cores_per_rank(share: int, tp: int) -> str:
    """SGLang's notation for the cores of each rank, such as `0,1|2,3`; too few cores are shared."""
    cores = sorted(os.sched_getaffinity(0))
    groups = []
    for rank in range(tp):
        mine = [cores[(rank * share + i) % len(cores)] for i in range(share)]
        groups.append(",".join(str(core) for core in mine))
    return "|".join(groups)
