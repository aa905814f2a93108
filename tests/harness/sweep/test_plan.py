"""Experiments, the plan and its prices."""

import importlib.util
import shutil
from pathlib import Path

import pytest

import conf
from harness import compose
from harness.compose import load
from harness.errors import ConfigError
from harness.measure.ladder import MAX_RUNGS, budgets, prefill_tokens, runs
from harness.models.checkpoint import open_checkpoint
from harness.points import make_point
from harness.records import Outcome, write_record
from harness.sweep import cells, grouping, multirun
from harness.sweep.cells import expand, open_single
from harness.sweep.cost import CPU_ASSUMPTION, History
from harness.sweep.execute import failure_record
from harness.sweep.experiment import parse
from harness.sweep.listing import lines
from harness.sweep.plan import State, make_plan
from harness.sweep.planfile import from_json, to_json

EXPERIMENTS = sorted(p.stem for p in (Path(conf.__file__).parent / "experiment").glob("*.yaml"))


def plan(tmp_path, *words):
    return multirun.plan_of(multirun.normalised([*words, f"results={tmp_path}"]))


def test_every_artefact_of_the_paper_has_an_experiment():
    wanted = {f"table_{n}" for n in range(1, 14)} | {f"figure_{n}" for n in range(2, 6)}
    assert wanted | {"kv_dtype", "memory", "lossless", "smoke", "all"} == set(EXPERIMENTS)


@pytest.mark.parametrize("hardware", ["cpu", "b200"])
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "all"])
def test_each_experiment_composes(name, hardware, tmp_path):
    made = plan(tmp_path, f"experiment={name}", f"hardware={hardware}", "hardware.gpus=2")
    assert made.points
    assert all(p.experiments == (name,) for p in made.points)
    if hardware == "cpu":
        assert {p.state for p in made.points} == {State.TO_RUN}


def test_all_tables_cost_a_third_of_one_process_a_point(tmp_path):
    made = plan(tmp_path, "experiment=all", "hardware=b200", "hardware.gpus=2")
    whole, alone = made.whole(), made.alone(shared=False)
    assert whole.starts * 3 <= alone.starts
    assert whole.prefill_tokens * 3 <= alone.prefill_tokens
    shared = [p for p in made.points if len(p.experiments) > 3]
    assert shared, "tables share points"
    assert len({p.point.key for p in made.points}) == len(made.points)


def test_only_a_model_that_says_so_runs_its_own_code_and_the_plan_shows_it(tmp_path):
    for words, shown in (((), False), (("model.trust_remote_code=true",), True)):
        made = plan(tmp_path, "model=tiny", "arm=native", "context=512", "hardware=cpu", *words)
        assert any("trust_remote_code" in line for line in lines(made)) is shown
        assert ("--trust-remote-code" in made.boots[0].spec.command(1)) is shown


def test_a_plan_survives_its_file(tmp_path):
    made = plan(tmp_path, "experiment=table_10", "hardware=cpu")
    assert from_json(to_json(made)) == made
    assert any("table_10" in line for line in lines(made))
    with pytest.raises(ConfigError, match="no plan file"):
        from_json(b"{}")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("arm=ring", "window=3"), "smaller than depth"),
        (("arm=ring", "window=60", "sink=61"), "sink_tokens=61"),
        (("arm=native", "depth=1"), "depth >= 2"),
        (("arm=rinq",), "unknown"),
        (("experiment=table_6", "force.depth=1"), "experiment=table_6 with .*depth=1"),
        (("experiment=table_6", "depth=5"), "only.depth=5"),
        (("experiment=table_6", "only.depht=5"), "no axis 'depht'"),
        (("experiment=table_6", "only.depth=77"), "leaves nothing"),
        (("retry=never",), "retry=never"),
        (("depth=3", "depth=5"), "given twice"),
        (("server.kind=podman",), "server.kind=podman"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(words, complaint, tmp_path):
    with pytest.raises(ConfigError, match=complaint):
        plan(tmp_path, "hardware=cpu", *words)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("arm=dense", "probe=trace"), "arm=dense has none"),
        (("arm=ring", "probe=decision"), "arm=native"),
        (("arm=windowed", "probe=attention_mass"), "arm=native"),
        (
            ("arm=native", "probe=trace", "server.kind=url", "server.url=http://127.0.0.1:1"),
            "server.kind=local",
        ),
    ],
)
def test_a_probe_that_cannot_look_is_refused_before_a_server_starts(words, complaint, tmp_path):
    point = plan(tmp_path, "hardware=cpu", *words).points[0]
    assert point.state is State.REFUSED
    assert complaint in point.reason


def test_a_probed_server_knows_the_windows_it_compares(tmp_path):
    def spec(*words):
        return plan(tmp_path, "hardware=cpu", "arm=native", *words).boots[0].spec

    windows = spec("probe=decision", "window=252", "sink=4").probe_windows
    assert windows == ((252, 4), (60, 4), (124, 4), (508, 4), (1020, 4))
    assert spec("probe=trace").probe_windows == ()
    assert spec("probe=trace").profiler == "torch"
    assert spec("probe=trace", "profile=none").profiler is None
    with pytest.raises(ConfigError, match="profile=nsys needs a GPU"):
        spec("probe=trace", "profile=nsys")
    with pytest.raises(ConfigError, match="profile=vtune"):
        spec("profile=vtune")


def test_filters_and_forced_values(tmp_path):
    made = plan(tmp_path, "experiment=table_6", "hardware=cpu", "only.depth=[3,5]", "only.arm=ring",
                "force.context=4096")  # fmt: skip
    assert {(p.point.arm, p.point.depth) for p in made.points} == {("ring", 3), ("ring", 5)}
    assert {p.point.context_tokens for p in made.points} == {4096}


def test_states_follow_the_records(tmp_path):
    words = ("experiment=table_1", "hardware=cpu")
    point = plan(tmp_path, *words).points[0].point

    def state(*more):
        return plan(tmp_path, *words, *more).points[0].state

    for outcome, default in [
        (Outcome.OK, State.DONE),
        (Outcome.OUT_OF_MEMORY_AT_RUN, State.DONE),
        (Outcome.SERVER_DIED, State.TO_RUN),
        (Outcome.INTERRUPTED, State.TO_RUN),
    ]:
        shutil.rmtree(tmp_path / "points", ignore_errors=True)
        write_record(tmp_path, failure_record(point, outcome, "for the test"))
        assert state() is default, outcome
        assert state("retry=none") is State.DONE
        assert state("retry=all") is State.TO_RUN


def test_a_checkpoint_that_is_not_here_is_listed_with_its_reason(tmp_path):
    made = plan(tmp_path, "experiment=table_1", "hardware=b200", "hardware.gpus=1")
    assert {p.state for p in made.points} == {State.CANNOT_RUN}
    assert "not downloaded" in made.points[0].reason
    assert made.remaining().starts == 0


def test_two_artefacts_share_their_points(tmp_path):
    made = plan(tmp_path, "experiment=table_9,figure_2", "hardware=cpu")
    assert [p.experiments for p in made.points] == [("table_9", "figure_2")] * 2
    assert made.alone(shared=False).starts == 4


def batch(size, **changes):
    config = compose.load(["hardware=cpu"])
    values = {"model": "tiny", "checkpoint": "c", "hardware": "cpu", "arm": "dense", "depth": 1, "batch": size,  # noqa: E501
              "context_tokens": 1000, "max_new_tokens": 120, "task": config.input.task, "draft_backend": "-",
              "shared_prefill": True}  # fmt: skip
    return make_point(values | changes)


def test_batches_run_down_from_the_largest():
    (run,) = runs([batch(n) for n in (1, 2, 3, 6)])
    assert [p.batch for p in run] == [6, 3, 2, 1]
    assert prefill_tokens(run) == 6000
    assert prefill_tokens([batch(6, arm="native", depth=7, probe="trace")]) == 12_000  # profiled once more
    drawn = batch(6, context_tokens=128, probe="draws", shared_prefill=False)
    assert prefill_tokens([drawn]) == (6 + 2048) * 128
    # 6 requests: three end after a quarter, one after each further quarter.
    assert budgets(run) == [120, 90, 60, 30, 30, 30]


def test_draws_cost_time():
    plain, drawn = (
        batch(16, context_tokens=128, probe=probe, shared_prefill=False) for probe in (None, "draws")
    )
    history, tpot_s = History(), CPU_ASSUMPTION.tpot_ms / 1000
    assert history.run_s(drawn, 0)[0] - history.run_s(plain, 0)[0] == pytest.approx(2048 / 16 * 8 * tpot_s)


def test_long_ladders_are_cut_and_own_prefills_stay_apart():
    made = runs([*(batch(n) for n in range(1, 14)), batch(2, shared_prefill=False)])
    assert sorted(len(run) for run in made) == [1, 6, 7]
    assert max(len(run) for run in made) <= MAX_RUNGS
    assert sum(prefill_tokens(run) for run in made) == (13 + 6 + 2) * 1000


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ({"product": {"depht": [3]}}, "no axis 'depht'"),
        ({"product": {"depth": 3}}, "needs a list"),
        ({"product": {"depth": []}}, "at least one"),
        ({"product": {"depth": [3]}, "set": {"depth": 5}}, "given twice"),
        ({"zip": [{"arm": "ring"}, {"depth": 3}]}, "same axes"),
        ({"sweep": {}}, "unknown sweep"),
    ],
)
def test_a_wrong_block_is_refused(block, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse({"cpu": [block]}, "mine")


def test_zip_goes_with_each_product():
    (block,) = parse(
        {
            "cpu": [
                {"product": {"arm": ["a", "b"]}, "zip": [{"window": 1, "sink": 2}, {"window": 3, "sink": 4}]}
            ]
        },
        "mine",
    ).cpu
    assert [(c["arm"], c["window"], c["sink"]) for c in block.combinations()] == [
        ("a", 1, 2), ("a", 3, 4), ("b", 1, 2), ("b", 3, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tp=99999"], "tp=99999: tiny has 4 attention heads"),
        (["tp=3", "hardware=b200", "hardware.gpus=4"], "tp=3 does not divide the 4 attention heads"),
        (["tp=4"], ""),
    ],
)
def test_more_ranks_than_heads_cannot_run(tmp_path, words, said):
    config = load(["hardware=cpu", *words])
    for cell in (open_single(config), *expand(config)):
        (planned,) = make_plan([cell], tmp_path).points
        assert planned.state is (State.CANNOT_RUN if said else State.TO_RUN)
        assert said in planned.reason


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["repeats=100000"], "from 1 to 1000"),
        (["experiment=table_6", "force.repeats=100000"], "from 1 to 1000"),
        (["seed=range(0,9000)"], "more than 1000 configurations"),
        (["seed=range(0,40)", "depth=range(2,32)"], "more than 1000 configurations"),
    ],
)
def test_a_plan_without_end_is_refused(tmp_path, words, said):
    with pytest.raises(ConfigError, match=said):
        plan(tmp_path, "hardware=cpu", *words)


def test_a_study_of_too_many_points_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(grouping, "MOST_POINTS", 3)
    with pytest.raises(ConfigError, match="more than 3 points"):
        plan(tmp_path, "hardware=cpu", "depth=2,3,4,5,6")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hardware=cpu", "hardware.name=b200"], "whose device is cuda, not cpu"),
        (["hardware=h100", "hardware.name=b200"], "whose gpu_name_contains is B200, not H100"),
        (["hardware=b200", "hardware.gpu_name_contains="], "gpu_name_contains is B200, not empty"),
        (["hardware=cpu", "model.name=qwen3.5-122b-a10b"], "that of model=tiny"),
        (["hardware=cpu", "model=qwen3_5_122b", "model.path=DIRECTORY"], "is no qwen3.5-122b-a10b: full-att"),
    ],
)
def test_a_papers_name_on_other_hardware_or_another_checkpoint_is_refused(tmp_path, words, said):
    where = str(open_checkpoint("package:tiny").path)
    words = [word.replace("DIRECTORY", where) for word in words]
    with pytest.raises(ConfigError, match=said):
        plan(tmp_path, *words)
    with pytest.raises(ConfigError, match=said):
        open_single(load(words))
    plan(tmp_path, "hardware=cpu", "hardware.name=mine", "model.name=mine")


def test_without_the_gpus_every_point_cannot_run_here_and_the_whole_cost_is_told(tmp_path, monkeypatch):
    words = ("hardware=h100", "arm=native", "context=512")
    for names, said in (([], "no H100 GPU is to be seen"), (["NVIDIA B200"], "this machine has NVIDIA B200")):
        monkeypatch.setattr(cells, "gpu_names", lambda names=names: names)
        made = plan(tmp_path, *words)
        assert {p.state for p in made.points} == {State.CANNOT_RUN}
        assert said in made.points[0].reason and said in open_single(load(words)).obstacle
        assert made.remaining().starts == 0
        assert "1 server start, 512 tokens prefilled, about 5 min, 0.1 GPU-hours (assumed" in "\n".join(
            lines(made)
        )
    monkeypatch.setattr(cells, "gpu_names", lambda: ["NVIDIA H100 80GB HBM3"])
    assert {p.state for p in plan(tmp_path, *words).points} == {State.TO_RUN}
    assert "only 1 of 2 H100 GPUs" in plan(tmp_path, *words, "hardware.gpus=2", "tp=2").points[0].reason


def test_jobs_of_a_cluster_are_judged_where_they_run(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "gpu_names", list)
    words = ("hardware=h100", "arm=native", "context=512", "hydra/launcher=slurm")
    if importlib.util.find_spec("submitit") is None:
        with pytest.raises(ConfigError, match=r"pip install -e '\.\[slurm\]'"):
            plan(tmp_path, *words)
    else:
        assert {p.state for p in plan(tmp_path, *words).points} == {State.TO_RUN}
