"""GPUs by a stand-in for NVML, hardware detection, and the environment of a record."""

from __future__ import annotations

import os
import subprocess
import time
from types import SimpleNamespace

import orjson
import pynvml
import pytest

from harness.errors import ConfigError, ServerError
from harness.host import environment, gpu
from harness.host.detect import detect_hardware, profile_for
from harness.records import Outcome
from harness.server.lifecycle import Server
from harness.server.spec import ServerSpec
from tests.harness.test_spec import BASE

MIB = 1 << 20


class FakeNvml:
    """Two GPUs whose memory and throttle bits a test sets; `broken` questions raise."""

    def __init__(self, monkeypatch, name=b"NVIDIA B200"):
        self.used_mib = [500, 700]
        self.bits = 0x4 | 0x40
        self.broken: set[str] = set()
        self.inits = 0
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        answers = {
            "nvmlInit": self.init,
            "nvmlShutdown": self.shutdown,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda i: i,
            "nvmlDeviceGetName": lambda h: name,
            "nvmlDeviceGetUUID": lambda h: f"GPU-{h}{h}-x",
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(
                total=1000 * MIB, used=self.used_mib[h] * MIB
            ),
            "nvmlDeviceGetComputeRunningProcesses": lambda h: [SimpleNamespace(pid=40 + h)],
            "nvmlSystemGetDriverVersion": lambda: b"590.1",
            "nvmlDeviceGetClockInfo": lambda h, kind: 1900 if kind == pynvml.NVML_CLOCK_SM else 3900,
            "nvmlDeviceGetPowerUsage": lambda h: 512_340,
            "nvmlDeviceGetTemperature": lambda h, kind: 55,
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=97),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda h: self.bits,
        }
        for function, answer in answers.items():
            monkeypatch.setattr(pynvml, function, self.question(function, answer))

    def question(self, name, answer):
        def ask(*arguments):
            if name in self.broken:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer(*arguments)

        return ask

    def init(self):
        self.inits += 1

    def shutdown(self):
        self.inits -= 1


@pytest.fixture
def nvml(monkeypatch):
    return FakeNvml(monkeypatch)


def test_gpus_and_driver(nvml):
    first = gpu.visible_gpus()[0]
    assert (first.name, first.memory_total_mib, first.memory_used_mib, first.process_ids) == (
        "NVIDIA B200", 1000, 500, (40,),
    )  # fmt: skip
    assert gpu.driver_version() == "590.1"
    assert gpu.memory_used_mib() == {"GPU-00-x": 500, "GPU-11-x": 700}
    assert nvml.inits == 0


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("1", [1]), ("1,0", [1, 0]), ("", []), ("-1", []), ("0,7,1", [0]), ("GPU-11", [1]), ("0", [0])],
)
def test_visible_devices_as_cuda_reads_them(nvml, monkeypatch, visible, indices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [g.index for g in gpu.visible_gpus()] == indices


def test_sampler_columns(nvml):
    nvml.broken = {"nvmlDeviceGetUtilizationRates"}
    with gpu.GpuSampler(interval_s=0.01) as sampler:
        deadline = time.monotonic() + 10
        while len(sampler.columns().get("gpu", [])) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    columns = sampler.columns()
    assert set(columns) == set(gpu.COLUMNS)
    assert len({len(column) for column in columns.values()}) == 1
    assert columns["gpu"][:4] == [0, 1, 0, 1]
    assert columns["power_w"][0] == 512.3
    assert columns["sm_clock_mhz"][0] == 1900
    assert columns["memory_clock_mhz"][0] == 3900
    assert columns["memory_used_mib"][:2] == [500, 700]
    assert columns["throttle_reasons"][0] == "power_cap+hw_thermal"
    assert columns["utilization_percent"][0] is None
    orjson.dumps(columns)
    assert nvml.inits == 0


def test_throttle_bits_are_nvml_s():
    assert gpu.throttle_names(pynvml.nvmlClocksThrottleReasonSwPowerCap) == "power_cap"
    assert gpu.throttle_names(pynvml.nvmlClocksThrottleReasonHwSlowdown) == "hw_slowdown"
    assert gpu.throttle_names(pynvml.nvmlClocksThrottleReasonSwThermalSlowdown) == "sw_thermal"
    assert gpu.throttle_names(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown) == "hw_thermal"
    assert gpu.throttle_names(pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown) == "hw_power_brake"
    assert gpu.throttle_names(pynvml.nvmlClocksThrottleReasonGpuIdle) == ""


def test_memory_has_to_come_back(nvml):
    baseline = gpu.memory_used_mib()
    nvml.used_mib = [900, 700]
    gpu.wait_for_baseline(baseline, timeout_s=0, tolerance_mib=400)
    with pytest.raises(ServerError, match="400 MiB on GPU-00-x"):
        gpu.wait_for_baseline(baseline, timeout_s=0, tolerance_mib=399)
    nvml.used_mib = [100, 100]
    gpu.wait_for_baseline(baseline, timeout_s=0)


def test_without_a_driver_all_is_empty(nvml):
    nvml.broken = {"nvmlInit"}
    assert gpu.visible_gpus() == []
    assert gpu.driver_version() is None
    with gpu.GpuSampler(0.01) as sampler:
        pass
    assert sampler.columns() == {}
    assert detect_hardware() == "cpu"


@pytest.mark.parametrize(
    ("names", "profile"),
    [
        ([], "cpu"),
        (["NVIDIA B200"], "b200"),
        (["NVIDIA H100 80GB HBM3"] * 8, "h100"),
        (["NVIDIA H100 PCIe"], "h100"),
        (["NVIDIA H200"], "h200"),
        (["NVIDIA-H200-NVL"], "h200"),
        (["NVIDIA HGX B200 180GB"], "b200"),
    ],
)
def test_profiles(names, profile):
    assert profile_for(names) == profile


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["NVIDIA A100-SXM4-80GB"], "no hardware profile knows NVIDIA A100"),
        (["NVIDIA GH200 480GB"], "no hardware profile"),
        (["NVIDIA GB200"], "no hardware profile"),
        (["NVIDIA H100", "NVIDIA H200"], "different GPUs"),
    ],
)
def test_machines_without_a_profile(names, message):
    with pytest.raises(ConfigError, match=message):
        profile_for(names)


def test_detection_asks_nvml(nvml):
    assert detect_hardware() == "b200"


# -- environment -------------------------------------------------------------------------------------------


def test_of_a_server_elsewhere_the_environment_is_the_clients(nvml):
    here, elsewhere = environment.capture_environment(), environment.capture_environment(elsewhere=True)
    assert set(elsewhere) == {"git", "harness_versions", "client"}
    assert set(elsewhere["client"]) == set(here) - {"git", "versions"}
    assert elsewhere["client"]["cpu"] == here["cpu"] and elsewhere["harness_versions"] == here["versions"]


def test_environment_names_the_machine_and_no_secret(nvml, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = environment.capture_environment()
    text = orjson.dumps(found).decode()
    assert "hf_secret" not in text
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert set(found["variables"]) <= set(environment.VARIABLES)
    assert not any(
        word in name for name in environment.VARIABLES for word in ("TOKEN", "KEY", "SECRET", "PASS")
    )
    assert found["gpus"][0]["name"] == "NVIDIA B200"
    assert found["driver"] == "590.1"
    assert found["versions"]["hydra-core"] == "1.3.8"
    assert found["memory_total_mib"] > 0
    assert found["cpu"]


def test_git_state_of_a_checkout(tmp_path, monkeypatch):
    module = tmp_path / "harness" / "host" / "environment.py"
    module.parent.mkdir(parents=True)
    module.write_text("1")
    monkeypatch.setattr(environment, "__file__", str(module))
    assert environment.git_state(module.parent) is None

    def git(*arguments):
        identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
        variables = {**os.environ, **identity, "GIT_COMMITTER_EMAIL": "a@b"}
        done = subprocess.run(
            ["git", "-C", tmp_path, *arguments], check=True, env=variables, capture_output=True
        )
        return done.stdout.decode().strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "empty")
    assert environment.git_state(module.parent) is None  # an installed copy inside another checkout
    git("add", ".")
    git("commit", "-q", "-m", "all")
    assert environment.git_state(module.parent) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "untracked").write_text("")
    assert environment.git_state(module.parent)["dirty"] is False
    module.write_text("2")
    assert environment.git_state(module.parent)["dirty"] is True


def test_without_git(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_state(tmp_path) is None


def test_a_profile_of_other_gpus_is_refused_before_a_server_starts(nvml, tmp_path):
    spec = ServerSpec(**BASE, gpu_name_contains="H100")
    server = Server(spec, tmp_path / "server.log")
    with pytest.raises(ServerError, match=r"for H100 GPUs and this machine has NVIDIA B200") as caught:
        server.start()
    assert caught.value.kind is Outcome.INVALID
    assert not (tmp_path / "server.log").exists()


def test_a_server_for_gpus_is_not_started_where_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setattr("harness.server.lifecycle.gpu_names", list)
    server = Server(ServerSpec(**BASE, gpu_name_contains="H100"), tmp_path / "server.log")
    with pytest.raises(ServerError, match="does not run here: no H100 GPU"):
        server.start()
