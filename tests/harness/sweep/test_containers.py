"""Container command lines, and the check of a server that runs already."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pydantic
import pytest

from harness.errors import ConfigError
from harness.server.attach import differences
from harness.server.containers import Container, cache_home
from harness.server.provenance import served_versions
from harness.sweep import multirun

HOSTILE = [
    "a b",
    "semi;colon",
    "$(touch pwned)",
    "quote'\"",
    "--flag",
    "*",
    "new\nline",
    "ünïcode",
    "back\\slash",
]


@pytest.mark.parametrize("kind", ["docker", "enroot"])
def test_hostile_names_reach_the_program_unchanged(kind, tmp_path):
    box = Container(kind, "image:1", mounts=("/data/a b", "/x;y:/z$(q)"), arguments=("--memory", "1 g; rm"))
    words = box.wrap(["python", "-m", "x", *HOSTILE], {"A": "b c;'\""}, "name-1")
    # The runtime replaced by a program that prints what it was given.
    shown = subprocess.run(
        [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words[1:]],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(shown.stdout) == words[1:]
    assert words[-len(HOSTILE) :] == HOSTILE
    assert list(tmp_path.iterdir()) == []
    assert "b c;'\"" not in " ".join(words), "values travel in the environment, not on the command line"


def test_docker_passes_gpus_environment_and_mounts():
    words = Container("docker", "image:1", mounts=("/models:/m",)).wrap(["py", "-m", "s"], {"B": "1"}, "n")
    assert words[:2] == ["docker", "run"]
    assert words[words.index("--env") + 1] == "B"
    assert words[words.index("--mount") + 1] == "type=bind,source=/models,target=/m"
    assert words[words.index("image:1") :] == ["image:1", "-m", "s"]
    assert Container("docker", "i").cleanup("n") == ["docker", "rm", "--force", "n"]


def test_a_user_that_the_image_does_not_know_has_a_home(tmp_path):
    words = Container("docker", "image:1").wrap(["py", "-m", "s"], {}, "n", tmp_path)
    assert f"HOME={tmp_path}" in words
    assert f"type=bind,source={tmp_path},target={tmp_path}" in words
    assert any(word.startswith("USER=") for word in words)
    assert not any("HOME=" in word for word in Container("enroot", "i").wrap(["py"], {}, "n", tmp_path))


def test_the_home_of_containers_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    assert cache_home() == cache_home() == tmp_path / "a b" / "windowed-mtp" / "container"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        cache_home()


def test_the_versions_are_those_of_the_interpreter_that_serves(tmp_path):
    made = spec(tmp_path)
    assert served_versions(made, "n", "0.5.23") == {}, "the harness's own is described by the environment"
    other = replace(made, python=str(tmp_path / "missing"))
    assert served_versions(other, "n", "0.5.22") == {"sglang": "0.5.22"}
    link = tmp_path / "python"
    link.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    link.chmod(0o755)
    assert served_versions(replace(made, python=str(link)), "n", None)["pydantic"] == pydantic.VERSION


@pytest.mark.parametrize("mount", ["relative", "/a,b", "/a:/b:/c", "/a\nb", ""])
def test_mounts_that_a_runtime_would_read_otherwise_are_refused(mount):
    with pytest.raises(ConfigError, match="mounts"):
        Container("docker", "image", mounts=(mount,))


@pytest.mark.parametrize("image", ["", "--privileged"])
def test_an_image_is_needed(image):
    with pytest.raises(ConfigError, match="image"):
        Container("docker", image)


def spec(tmp_path, *words):
    return multirun.plan_of(["hardware=cpu", f"results={tmp_path}", *words]).boots[0].spec


def test_a_running_server_is_compared_with_the_points(tmp_path):
    wanted = spec(tmp_path, "arm=ring", "depth=7", "server=url", "server.url=http://127.0.0.1:30000",
                  "server.log_path=/its/log")  # fmt: skip
    reported = {
        "tp_size": 1, "page_size": 1, "disable_radix_cache": True, "dtype": "bfloat16",
        "kv_cache_dtype": "auto", "speculative_algorithm": "EAGLE", "decode_log_interval": 1,
        "speculative_num_steps": 6, "speculative_num_draft_tokens": 7, "speculative_eagle_topk": 1,
        "speculative_draft_window_size": 252, "speculative_draft_sink_size": 4, "context_length": 10**6,
        "device": "cpu",
    }  # fmt: skip
    assert differences(wanted, reported) == []
    assert differences(wanted, {**reported, "device": "cuda"}) == ["device is 'cuda', not 'cpu'"]
    silent = {name: value for name, value in reported.items() if name != "device"}
    assert differences(wanted, silent) == [], "a server that does not say"
    for name in reported:
        if name not in {"context_length"}:
            found = differences(wanted, {**reported, name: 99})
            assert len(found) == 1
            assert name in found[0]
    assert "context_length" in differences(wanted, {**reported, "context_length": 10})[0]
    assert differences(spec(tmp_path, "arm=dense"), reported) != []
    for path in ("/elsewhere/tiny", "owner/Tiny", "/c/models--owner--tiny/snapshots/0a1b", wanted.model_path):
        assert differences(wanted, {**reported, "model_path": path}) == []
    assert differences(wanted, {**reported, "model_path": "/m", "served_model_name": "tiny"}) == []
    config = orjson.loads((Path(wanted.model_path) / "config.json").read_bytes())
    same = {"model_type": config["model_type"], "architectures": config["architectures"]}
    for said in (
        same,
        {"architectures": ["Renamed"]},
        {**same, "architectures": ["Renamed"]},
        {"model_type": "x"},
    ):
        assert differences(wanted, reported, said) == []
    for said, phrase in (
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "its model is a LlamaForCausalLM"),
        ({"model_path": "/models/swapped-in"}, "its model is /models/swapped-in, not tiny"),
        ({"quantization": "fp8"}, "its weights are quantised (fp8)"),
    ):
        (found,) = differences(wanted, reported, said)
        assert phrase in found
    half = replace(wanted, dtype="float16", kv_dtype="float16")
    (found,) = differences(half, {**reported, "dtype": "auto"})
    assert "its dtype is auto, which is bfloat16 for this checkpoint, not float16" in found
    snapshot = replace(wanted, model_path=f"/c/models--o--tiny/snapshots/{'a' * 40}")
    for said in ({"revision": "b" * 40}, {"model_path": f"/d/models--o--tiny/snapshots/{'b' * 40}"}):
        (found,) = differences(snapshot, reported, said)
        assert f"revision is {'b' * 40}, not {'a' * 40}" in found
    for said in ({"revision": "main"}, {"revision": None}, {"revision": "a" * 40}):
        assert differences(snapshot, reported, said) == []
    asked = replace(wanted, extra_arguments=("--quantization", "fp8"))
    assert differences(asked, reported, {"quantization": "fp8"}) == []
    (found,) = differences(wanted, {**reported, "model_path": "/models/some-other-70b"})
    assert "its model is /models/some-other-70b, not tiny" in found
