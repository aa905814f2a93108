import pytest

from harness.engine.probes.settings import from_environment
from harness.errors import ConfigError
from harness.server.spec import ServerSpec

BASE = {
    "model_path": "/models/m",
    "device": "cuda",
    "arm": "ring",
    "depth": 7,
    "window_tokens": 4032,
    "sink_tokens": 64,
    "tp": 1,
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "target_backend": "flashinfer",
    "draft_backend": "triton",
    "context_length": 1_048_576,
    "max_running_requests": 1,
    "chunked_prefill_tokens": 8192,
    "mem_fraction_static": 0.85,
}
# What turns a GPU server into one of CPU mode; none of it may reach a GPU server.
CPU_ONLY = {"SGLANG_USE_CPU_ENGINE", "PYTHONPATH", "TORCHDYNAMO_DISABLE", "CUDA_VISIBLE_DEVICES"}


def value_of(command, name):
    return command[command.index(name) + 1] if name in command else None


def test_the_papers_ring_server():
    command = ServerSpec(**BASE).command(30000)
    assert value_of(command, "--host") == "127.0.0.1"
    assert value_of(command, "--speculative-num-steps") == "6"
    assert value_of(command, "--speculative-num-draft-tokens") == "7"
    assert value_of(command, "--speculative-draft-window-size") == "4032"
    assert value_of(command, "--speculative-draft-sink-size") == "64"
    assert value_of(command, "--speculative-draft-attention-backend") == "triton"
    assert value_of(command, "--attention-backend") == "flashinfer"
    assert value_of(command, "--decode-log-interval") == "1"
    assert value_of(command, "--page-size") == "1"
    assert value_of(command, "--kv-cache-dtype") == "bfloat16"


def test_dense_has_no_speculation_and_native_no_window():
    dense = {**BASE, "arm": "dense", "depth": 1, "window_tokens": None, "sink_tokens": None}
    assert not [a for a in ServerSpec(**dense).command(1) if a.startswith("--speculative")]
    native = ServerSpec(**{**BASE, "arm": "native", "window_tokens": None, "sink_tokens": None}).command(1)
    assert value_of(native, "--speculative-num-draft-tokens") == "7"
    assert "--speculative-draft-window-size" not in native


def test_a_gpu_server_sees_nothing_of_cpu_mode():
    assert not CPU_ONLY & set(ServerSpec(**BASE).environment())
    cpu = ServerSpec(**{**BASE, "device": "cpu", "target_backend": "intel_amx", "threads": 2})
    assert set(cpu.environment()) >= CPU_ONLY
    assert cpu.command(1).count("--attention-backend") == 1


@pytest.mark.parametrize(
    "change", [{"depth": 5}, {"tp": 2}, {"window_tokens": 1024}, {"context_length": 4096}]
)
def test_another_setting_is_another_boot(change):
    assert ServerSpec(**BASE).key != ServerSpec(**{**BASE, **change}).key


def test_a_probe_travels_in_the_environment_and_reads_eagerly(tmp_path):
    native = {**BASE, "arm": "native", "window_tokens": None, "sink_tokens": None}
    windows = ((4032, 64), (960, 64))
    spec = ServerSpec(**native, probe="decision", probe_windows=windows)
    settings = from_environment(spec.environment(tmp_path))
    assert (settings.kind, settings.directory, settings.windows) == ("decision", str(tmp_path), windows)
    assert "--disable-cuda-graph" in spec.command(1)
    traced = ServerSpec(**BASE, probe="trace", profiler="nsys")
    assert "--disable-cuda-graph" not in traced.command(1)
    assert from_environment(traced.environment(tmp_path)).nvtx
    assert not from_environment(ServerSpec(**BASE).environment()).active
    with pytest.raises(ConfigError, match="absolute directory"):
        spec.environment()
