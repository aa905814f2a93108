"""Planted secrets: whole command lines leave none of them in anything that is written or printed."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest

from analysis import cli
from harness.records import read_all

SECRET = "sesame-0451"
VARIABLES = ("HF_TOKEN", "WMTP_API_KEY", "AWS_SECRET_ACCESS_KEY", "SGLANG_API_KEY", "WANDB_API_KEY")
POINT = ("arm=native", "context=512", "max_new_tokens=24", "input.params.keys=8")


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)


def files_with_it(folder: Path) -> list[str]:
    """Files that hold the secret, also inside gzip."""
    found = []
    for path in (p for p in folder.rglob("*") if p.is_file()):
        body = path.read_bytes()
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        found += [str(path)] * (SECRET.encode() in body or SECRET in path.name)
    return found


def unsaid(done: subprocess.CompletedProcess[str]) -> bool:
    return SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("multirun", [(), ("-m",)])
def test_secrets_of_the_environment_are_written_nowhere(sweep, tmp_path, multirun):
    done = sweep.run(*multirun, *POINT)
    assert done.returncode == 0, done.stderr
    assert unsaid(done)
    results = str(sweep.results)
    for words in (["report"], ["export"], ["tables"]):
        assert cli.main([*words, "--results", results, "--out", str(tmp_path / "out" / words[0])]) == 0
    assert len(read_all(sweep.results)[0]) == 1
    assert (tmp_path / "out" / "report").exists()
    assert files_with_it(tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [
        (f"server.extra_arguments=[--api-key,{SECRET}]",),
        (f"server.extra_arguments=['--ssl-keyfile-password={SECRET}']",),
        (f"model.server_arguments=[--some-auth-token,{SECRET}]",),
        (f'server.extra_arguments=[\'{{"hf_token": "{SECRET}"}}\']',),
        ("server.kind=url", f"server.url='http://me:{SECRET}@127.0.0.1:1'"),
        ("server.kind=url", f"server.url='http://me:{SECRET}@127.0.0.1:1'", "-m"),
        ("server.kind=url", f"server.url='http://127.0.0.1:1/?api_key={SECRET}'"),
        ("server=docker", f"server.container_arguments=['--env','HF_TOKEN={SECRET}']"),
        ("server=enroot", f"server.container_arguments=['--export=ALL,HF_TOKEN={SECRET}']"),
    ],
)
def test_secrets_on_the_command_line_are_refused_before_anything_is_written(sweep, tmp_path, words):
    done = sweep.run(*POINT, *words)
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert unsaid(done)
    assert files_with_it(tmp_path) == []


def test_a_configuration_from_elsewhere_is_not_stored_by_hydra(sweep, tmp_path):
    folder = tmp_path / "own" / "server"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        f"defaults:\n  - server_schema\nkind: url\nurl: http://me:{SECRET}@127.0.0.1:1\n"
    )
    done = sweep.run("server=mine", *POINT, "--config-dir", str(folder.parent))
    assert done.returncode == 1
    assert "server.url may not hold" in done.stderr
    assert unsaid(done)
    assert files_with_it(sweep.results) == []
