"""Where checkpoints are looked for, what an experiment takes of `model.*`, and what is fetched when."""

import pytest

from harness import checkup, compose
from harness.checkpoints import located, names_of, opened
from harness.engine.tiny import checkpoint_path
from harness.errors import ConfigError
from harness.models import checkpoint as checkpoints
from harness.points import ARMS
from harness.sweep import cells, multirun

QWEN = ("model=qwen3_6_35b", "hardware=b200")


def plan(tmp_path, *words):
    return multirun.plan_of(multirun.normalised([*words, f"results={tmp_path / 'results'}"]))


@pytest.fixture
def hub_fetches(monkeypatch):
    """Ids that something wanted to download; none is in the local cache."""
    asked = []

    def snapshot(name, revision, download):
        if download:
            asked.append(name)
        raise ConfigError(f"{name} is not downloaded")

    monkeypatch.setattr(checkpoints, "_snapshot", snapshot)
    return asked


@pytest.mark.parametrize(
    "name",
    [
        "qwen3.6-35b-a3b",
        "qwen3_6_35b",
        "Qwen3.6-35B-A3B-NVFP4",
        "RedHatAI--Qwen3.6-35B-A3B-NVFP4",
        "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
    ],
)
def test_a_folder_of_checkpoints_goes_by_any_natural_name(name, tmp_path):
    (tmp_path / name).mkdir(parents=True)
    config = compose.load([*QWEN, f"checkpoints={tmp_path}"])
    assert located(config).model.path == str(tmp_path / name)
    assert located(compose.load(["model=tiny", "hardware=cpu", f"checkpoints={tmp_path}"])).model.path == (
        "package:tiny"
    )


def test_a_folder_that_was_named_for_the_model_stays(tmp_path):
    for name in ("qwen3_6_35b", "mine"):
        (tmp_path / name).mkdir()
    config = compose.load([*QWEN, f"checkpoints={tmp_path}", f"model.path={tmp_path / 'mine'}"])
    assert located(config).model.path == str(tmp_path / "mine")


def test_what_is_nowhere_says_where_it_was_looked_for_and_how_to_name_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = compose.load([*QWEN, f"checkpoints={tmp_path}"])
    with pytest.raises(ConfigError, match=r"model\.path=FOLDER .*checkpoints=FOLDER") as found:
        opened(config, download=False)
    assert all(name in str(found.value) for name in (str(tmp_path), *names_of(config.model)))
    with pytest.raises(ConfigError, match=f"checkpoints={tmp_path}/no is no folder"):
        opened(compose.load([*QWEN, f"checkpoints={tmp_path}/no"]), download=False)


def test_a_point_and_the_doctor_honour_checkpoints(tmp_path, capsys):
    (tmp_path / "tiny").symlink_to(checkpoint_path())
    words = ["model=tiny", "hardware=cpu", f"checkpoints={tmp_path}"]
    assert cells.open_single(compose.load(words)).config.model.path == str(tmp_path / "tiny")
    for more in ([], ["experiment=smoke", "only.arm=ring"]):
        checkup.main([*(words if not more else words[1:]), *more])
        assert f"ok   checkpoint  {tmp_path}/tiny: " in capsys.readouterr().out


def test_the_doctor_knows_another_model_under_a_profiles_name(capsys):
    assert checkup.main([*QWEN, f"model.path={checkpoint_path()}"]) == 1
    assert "is no qwen3.6-35b-a3b: full-attention layers 2, not 10" in capsys.readouterr().out


def test_the_doctor_looks_at_every_checkpoint_of_an_experiment(hub_fetches, capsys):
    assert checkup.main(["experiment=table_1", "hardware=b200"]) == 1
    said = capsys.readouterr().out
    assert said.count("fail checkpoint") == 3
    assert hub_fetches == []


def test_an_experiment_takes_the_path_of_its_only_model(tmp_path):
    words = ("experiment=table_1", "hardware=b200", "only.model=qwen3_6_35b")
    made = plan(tmp_path, *words, "model.path=/no/such")
    assert {boot.spec.model_path for boot in made.boots} == {"/no/such"}
    with pytest.raises(ConfigError, match=r"is no qwen3\.6-35b-a3b"):
        plan(tmp_path, *words, f"model.path={checkpoint_path()}")


def test_a_path_for_several_models_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path=\.\.\. is of one model.*qwen3_5_122b.*only\.model"):
        plan(tmp_path, "experiment=table_1", "hardware=b200", "model.path=/no/such")


def test_any_experiment_runs_with_a_model_of_ones_own(tmp_path):
    made = plan(
        tmp_path, "experiment=smoke", "hardware=cpu", "force.model=custom", "model.name=mine",
        f"model.path={checkpoint_path()}", "model.native_context_tokens=4096",
    )  # fmt: skip
    assert {p.point.arm for p in made.points} == set(ARMS)
    assert {(p.point.model, str(p.state)) for p in made.points} == {("mine", "to run")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("force.model=custom", "force.model.path=/x"),
            r"force\.model\.path: .*give model\.path=",
        ),
        (("force.model=custom",), r"model\.path is not set: give it, model\.path="),
        (("input.params.keys=3",), r"input_params=\{niah_multiquery_enum: \{keys: 3\}\}"),
        (("only.model=qwen",), r"only\.model=qwen leaves nothing of it, choose from tiny"),
        (("only.depth=5", "only.arm=ring"), r"only\.depth=5 leaves nothing of it, choose from 3"),
    ],
)
def test_what_an_experiment_would_pass_over_is_refused(words, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        plan(tmp_path, "experiment=smoke", "hardware=cpu", *words)


def test_nothing_is_fetched_for_a_point_that_cannot_run(hub_fetches, monkeypatch):
    monkeypatch.setattr(cells, "gpu_names", lambda: [])
    cell = cells.open_single(compose.load(QWEN))
    assert "no B200 GPU is to be seen" in cell.obstacle
    with pytest.raises(ConfigError, match="depth >= 2"):
        cells.open_single(compose.load([*QWEN, "depth=1"]))
    assert hub_fetches == []
    monkeypatch.setattr(cells, "gpu_names", lambda: ["NVIDIA B200"])
    with pytest.raises(ConfigError, match="not downloaded"):
        cells.open_single(compose.load(QWEN))
    assert hub_fetches == ["RedHatAI/Qwen3.6-35B-A3B-NVFP4"]
