"""What a CPU server is started with."""

from __future__ import annotations

import os

import pytest

from harness.engine.cpu.environment import KERNELS_PATH, cpu_environment, cpu_server_arguments
from harness.errors import ConfigError


def test_kernels_come_first_on_the_import_path_and_only_once(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/a", str(KERNELS_PATH), "/b"]))
    assert cpu_environment(1)["PYTHONPATH"].split(os.pathsep) == [str(KERNELS_PATH), "/a", "/b"]
    monkeypatch.delenv("PYTHONPATH")
    assert cpu_environment(1)["PYTHONPATH"] == str(KERNELS_PATH)
    assert (KERNELS_PATH / "sgl_kernel" / "__init__.py").is_file()


def test_threads_are_shared_by_the_ranks() -> None:
    assert cpu_environment(4)["OMP_NUM_THREADS"] == "4"
    assert cpu_environment(4, tp=2)["OMP_NUM_THREADS"] == "2"
    assert cpu_environment(1, tp=2)["OMP_NUM_THREADS"] == "1"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in cpu_environment(4)
    groups = cpu_environment(2, tp=2)["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
    cores = {str(core) for core in os.sched_getaffinity(0)}
    assert len(groups) == 2
    assert set(groups) <= cores
    assert len(set(groups)) == min(2, len(cores))


def test_a_gpu_stays_out_of_sight() -> None:
    variables = cpu_environment(1)
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert variables["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "TRITON_INTERPRET" not in variables
    assert cpu_environment(1, interpret_triton=True)["TRITON_INTERPRET"] == "1"


def test_states_of_a_float32_server_are_float32() -> None:
    assert cpu_environment(1, dtype="float32")["SGLANG_MAMBA_CONV_DTYPE"] == "float32"
    assert "SGLANG_MAMBA_CONV_DTYPE" not in cpu_environment(1, dtype="bfloat16")


def test_arguments() -> None:
    arguments = cpu_server_arguments()
    assert arguments[arguments.index("--device") + 1] == "cpu"
    assert arguments[arguments.index("--attention-backend") + 1] == "intel_amx"
    assert cpu_server_arguments("triton")[3] == "triton"
    assert "--sleep-on-idle" in arguments


@pytest.mark.parametrize(("threads", "tp"), [(0, 1), (1, 0), (-1, 1)])
def test_impossible_counts_are_refused(threads, tp) -> None:
    with pytest.raises(ConfigError, match=f"threads={threads}, tp={tp}"):
        cpu_environment(threads, tp)
