"""The doctor's lines and exit status."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from harness import checkup as doctor
from harness.compose import load
from harness.host.gpu import Gpu
from harness.server import runtimes


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


def test_each_warning_says_what_it_costs_and_what_to_do(monkeypatch, tmp_path):
    gib = 2**30
    (tmp_path / "tokenizer.model").write_text("")
    monkeypatch.setattr(doctor.gpu, "visible_gpus", lambda: [Gpu(0, "Tesla T4", "u", 15_000, 9_000, ())])
    monkeypatch.setattr(doctor.gpu, "driver_version", lambda: "590.1")
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: SimpleNamespace(available=gib, total=gib))
    monkeypatch.setattr(doctor, "left_behind", lambda mark: [SimpleNamespace(pid=4711)])
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=gib // 2))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/docker" if name == "docker" else None)
    monkeypatch.setattr(runtimes, "output_of", lambda *_: None)
    shared_memory = doctor.check_shared_memory()
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * gib))
    found = [
        *doctor.check_driver(), *doctor.check_gpu_tenants(), *doctor.check_memory(), *shared_memory,
        *doctor.check_disk(tmp_path), *doctor.check_ports(), *doctor.check_containers(),
        doctor._tokenizer(SimpleNamespace(path=tmp_path)),
    ]  # fmt: skip
    advice = {finding.check: finding.advice for finding in found if finding.level == "warn"}
    told = {
        "driver": ("has to name one", "Tesla T4"),
        "gpu tenants": ("step times are not", "ask who uses"),
        "memory": ("may be killed", "free memory"),
        "/dev/shm": ("fail to start", "--shm-size"),
        "disk": ("a full disk ends it", "free space"),
        "servers": ("slow what is measured", "kill -9 4711"),
        "containers": ("cannot run", "start it, or let this user reach it"),
        "tokenizer": ("no prompt can be built", "convert it"),
    }
    assert set(advice) == set(told)
    assert [name for name, words in told.items() if not all(word in advice[name] for word in words)] == []


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
    monkeypatch.setattr(runtimes, "output_of", lambda *_: None)  # the daemon does not answer
    for tool in ("/usr/bin/docker", None):
        monkeypatch.setattr(doctor.shutil, "which", lambda name, tool=tool: tool)
        assert found("hardware=cpu", "server=docker")["containers"] == "fail"
    assert found("hardware=cpu")["containers"] == "ok"
