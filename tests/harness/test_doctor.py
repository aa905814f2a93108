"""The doctor's lines and exit status."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from harness import checkup as doctor
from harness.compose import load
from harness.host.gpu import Gpu


def levels(findings):
    return {f.check: f.level for f in findings}


@pytest.mark.skipif(find_spec("sglang") is None, reason="the whole install is looked at: make setup")
def test_a_machine_without_gpu_passes(capsys, tmp_path):
    assert doctor.main(["--results", str(tmp_path / "new" / "results")]) == 0
    out = capsys.readouterr().out
    for check in (
        "driver",
        "memory",
        "disk",
        "/dev/shm",
        "ports",
        "containers",
        "sglang",
        "plugin",
        "tokenizer",
    ):
        assert check in out
    assert "fail" not in out


def test_a_missing_checkpoint_fails(capsys):
    assert doctor.main(["--checkpoint", "/no/such/model"]) == 1
    assert "fail checkpoint" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gpus", "driver", "tenants"),
    [
        ([], "fail", None),
        ([Gpu(0, "NVIDIA B200", "u", 180_000, 400, ())], "ok", "ok"),
        ([Gpu(0, "NVIDIA B200", "u", 180_000, 90_000, (77,))], "ok", "fail"),
        ([Gpu(0, "NVIDIA B200", "u", 180_000, 90_000, ())], "ok", "warn"),
        ([Gpu(0, "Tesla T4", "u", 15_000, 0, ())], "warn", "ok"),
    ],
)
def test_gpus(monkeypatch, gpus, driver, tenants):
    monkeypatch.setattr(doctor.gpu, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(doctor.gpu, "driver_version", lambda: "590.1")
    assert levels(doctor.check_driver())["driver"] == driver
    assert levels(doctor.check_gpu_tenants()).get("gpu tenants") == tenants


@pytest.mark.parametrize(("version", "level"), [("0.5.23", "ok"), ("0.5.24", "fail"), (None, "fail")])
def test_sglang_version(monkeypatch, version, level):
    def installed(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(doctor.metadata, "version", installed)
    (finding,) = doctor.check_sglang()
    assert finding.level == level
    assert level == "ok" or finding.advice


@pytest.mark.parametrize(("names", "level"), [(["windowed_mtp", "x"], "ok"), (["x"], "fail"), ([], "fail")])
def test_plugin(monkeypatch, names, level):
    entries = [SimpleNamespace(name=name) for name in names]
    monkeypatch.setattr(doctor.metadata, "entry_points", lambda group: entries)
    assert doctor.check_plugin()[0].level == level


@pytest.mark.parametrize(("free_gib", "level"), [(500, "ok"), (5, "warn"), (0.5, "fail")])
def test_disk(monkeypatch, tmp_path, free_gib, level):
    usage = SimpleNamespace(free=int(free_gib * 2**30))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    assert doctor.check_disk(tmp_path)[0].level == level


def test_left_over_servers_are_named(monkeypatch):
    monkeypatch.setattr(doctor, "left_behind", lambda mark: [SimpleNamespace(pid=4711)])
    finding = next(f for f in doctor.check_ports() if f.check == "servers")
    assert finding.level == "warn"
    assert "4711" in finding.advice


def test_a_broken_check_is_a_line(monkeypatch, tmp_path):
    def broken():
        raise OSError("no such device")

    monkeypatch.setattr(doctor, "check_memory", broken)
    findings = doctor.examine(tmp_path, "package:tiny")
    assert levels(findings)["memory"] == "fail"
    assert levels(findings)["checkpoint"] == "ok"


def test_the_named_hardware_and_server_have_to_be_here(monkeypatch, tmp_path):
    def found(*words, names=()):
        monkeypatch.setattr(doctor.gpu, "gpu_names", lambda: list(names))
        return levels(doctor.examine(tmp_path, "package:tiny", load(list(words))))

    assert found("hardware=b200")["hardware"] == "fail"
    assert found("hardware=b200", names=["NVIDIA H100"])["hardware"] == "fail"
    assert found("hardware=b200", names=["NVIDIA B200"])["hardware"] == "ok"
    assert found("hardware=cpu")["hardware"] == "ok"
    monkeypatch.setattr(doctor, "output_of", lambda *_: None)  # the daemon does not answer
    for tool in ("/usr/bin/docker", None):
        monkeypatch.setattr(doctor.shutil, "which", lambda name, tool=tool: tool)
        assert found("hardware=cpu", "server=docker")["containers"] == "fail"
    assert found("hardware=cpu")["containers"] == "ok"
