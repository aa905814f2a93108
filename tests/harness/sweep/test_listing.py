"""What a plan tells people: names, prices, and what a run would do or refuse."""

import importlib.util

import pytest

from harness import plan as command
from harness.errors import ConfigError
from harness.records import DecodeSteps, Outcome, RequestResult, write_record
from harness.server import runtimes
from harness.sweep import cells, listing, multirun
from harness.sweep.cost import History
from harness.sweep.execute import failure_record
from harness.sweep.listing import lines, notes, tokens
from harness.sweep.naming import boot_names, point_names, task_name
from harness.sweep.plan import State
from harness.sweep.submission import submission_lines

WITH_SUBMITIT = importlib.util.find_spec("submitit") is not None


def plan(tmp_path, *words):
    return multirun.plan_of(multirun.normalised([*words, "hardware=cpu", f"results={tmp_path}"]))


def text(made) -> str:
    return "\n".join(lines(made))


def test_one_point_is_told_in_few_lines(tmp_path):
    said = text(plan(tmp_path, "arm=native"))
    assert "1 server start, 8,192 tokens prefilled" in said
    assert "one process a point" not in said and "whole study" not in said
    shared = text(plan(tmp_path, "arm=native", "context=512,1024"))
    assert shared.count("one process a point") == 1, "no tables share anything"
    assert text(plan(tmp_path, "experiment=table_9,figure_2")).count("one process a point") == 2
    assert tokens(999_999) == "999,999 tokens" and tokens(2_859_000) == "2.859M tokens"


def test_what_differs_in_a_plan_is_in_its_names(tmp_path):
    made = plan(tmp_path, "arm=native", "seed=1,2", "kv_dtype=bfloat16,float32", "max_new_tokens=8,16")
    for names in (boot_names(made), point_names(made)):
        assert len(set(names.values())) == len(names)
    assert all("seed=" in name and "max_new_tokens=" in name for name in point_names(made).values())
    plain = plan(tmp_path, "arm=native")
    assert list(point_names(plain).values()) == ["tiny native d=7 S=8192 B=1 niah_multiquery_enum"]
    probed = plan(tmp_path, "arm=native", "server.chunked_prefill_tokens=512", "probe=trace,decision")
    assert {name.rpartition(" ")[2] for name in boot_names(probed).values()} == {
        "probe=trace",
        "probe=decision",
    }


def test_boots_of_a_whole_study_are_told_apart(tmp_path):
    made = plan(tmp_path, "experiment=all")
    names = boot_names(made)
    assert len(set(names.values())) == len(made.boots)
    assert len(set(point_names(made).values())) == len(made.points)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("input=niah_multiquery_enum",), "niah_multiquery_enum"),
        (("input=niah_multiquery_enum_small",), "niah_multiquery_enum_small"),
        (("input.params.keys=11",), "niah_multiquery_enum (keys=11)"),
        (("input=random",), "random"),
    ],
)
def test_an_input_is_named_for_its_file_or_for_what_differs(tmp_path, words, name):
    assert task_name(plan(tmp_path, *words).points[0].point) == name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["input.params.keyz=3"], "has no parameter keyz (it has: keys, haystack_kind"),
        (["experiment=table_6", "input_params={cwe: {wordz: 3}}"], "has no parameter wordz (it has: words"),
        (["experiment=table_6", "input_params={cwee: {words: 3}}"], "no task 'cwee'"),
        (["+input=longbench_code_qa", "input.params.datta=x"], "has no parameter datta (it has: data"),
        (["input.task=nosuch"], "no task 'nosuch'"),
    ],
)
def test_a_mistyped_parameter_is_refused_with_those_there_are(words, said, tmp_path, capsys):
    words = [word.removeprefix("+") for word in words]
    assert command.main([*words, "hardware=cpu", f"results={tmp_path}"]) == 1
    assert said in capsys.readouterr().err


def test_a_running_server_is_refused_by_the_plan_as_by_the_run(sweep, tmp_path):
    url = ("server=url", "server.url=http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"arm=ring of a running server .* add server.log_path=FILE"):
        plan(tmp_path, "arm=ring", *url)
    done = sweep.run("arm=ring", *url)
    assert done.returncode == 1 and "add server.log_path=FILE" in done.stderr
    made = plan(tmp_path, "arm=ring", *url, "server.log_path=/no/such/log")
    assert made.points[0].state is State.CANNOT_RUN
    assert "/no/such/log is no file" in made.points[0].reason
    (tmp_path / "log").write_text("")
    made = plan(tmp_path, "arm=ring", *url, f"server.log_path={tmp_path / 'log'}")
    assert made.points[0].state is State.TO_RUN
    assert "measures the server at http://127.0.0.1:1 as it is" in text(made)
    assert "1 server start" not in text(made)
    assert plan(tmp_path, "arm=native", *url).points[0].state is State.TO_RUN


def test_a_container_is_shown_as_it_would_be_started(tmp_path, monkeypatch):
    words = ("arm=ring", "server=docker", "server.image=me/sglang:1", "server.mounts=[/data]")
    monkeypatch.setattr(cells, "_runtime_problem", runtimes.runtime_problem)
    monkeypatch.setattr(runtimes.shutil, "which", lambda name: f"/usr/bin/{name}")
    answers = {"version": "29", "image": None}
    monkeypatch.setattr(runtimes, "output_of", lambda command, _: answers[command[1]])
    made = plan(tmp_path, *words)
    said = text(made)
    assert made.points[0].state is State.TO_RUN
    assert "starts docker run --rm" in said and "source=/data" in said
    assert "me/sglang:1 -m sglang.launch_server --model-path" in said
    assert "the image me/sglang:1 is not here: docker pulls it" in said
    answers["image"] = "sha256:0"
    assert "is not here" not in text(made)
    answers["version"] = None
    made = plan(tmp_path, *words)
    assert made.points[0].state is State.CANNOT_RUN
    assert "Docker daemon does not answer" in made.points[0].reason
    monkeypatch.setattr(runtimes.shutil, "which", lambda name: None)
    assert "by srun, which is not here" in plan(tmp_path, "server=enroot", "server.image=i").points[0].reason


@pytest.mark.skipif(not WITH_SUBMITIT, reason="needs submitit")
def test_a_cluster_is_shown_what_it_would_be_given(tmp_path):
    words = ["arm=native,ring", "hydra/launcher=slurm", "hydra.launcher.partition=long"]
    said = "\n".join(submission_lines(words, plan(tmp_path, *words)))
    assert "would submit 2 jobs by hydra/launcher=slurm, one a boot, 1 at a time" in said
    assert "12.0 h each, requeued 2 times" in said
    assert "partition=long" in said and "gpus_per_node" not in said
    short = [*words, "hydra.launcher.timeout_min=1"]
    long = plan(tmp_path, *short, "context=65536", "batch=4")
    assert "more than a job has: raise hydra.launcher.timeout_min" in "\n".join(submission_lines(short, long))
    assert list(submission_lines([], long)) == []


@pytest.mark.skipif(not WITH_SUBMITIT, reason="needs submitit")
def test_a_launcher_without_a_multirun_is_refused():
    with pytest.raises(ConfigError, match="add -m"):
        multirun.checked(["arm=native", "hydra/launcher=slurm", "hardware=cpu"])


def measured(tmp_path):
    """A record whose first decode line covers 10 s of prefill, as a scheduler's does."""
    point = plan(tmp_path, "arm=native", "context=1000").points[0].point
    record = failure_record(point, Outcome.OK, "")
    record.duration_s = 11.0
    record.log_summary["wall_s"] = 10.9
    rates = [2 / 10.1, *[20.0] * 9]
    record.decode_steps = DecodeSteps(
        time_s=[None] * 10, running_requests=[1] * 10, resident_tokens=[None] * 10,
        accept_length=[2.0] * 10, throughput_tokens_per_s=rates, queued_requests=[None] * 10,
    )  # fmt: skip
    record.requests = [RequestResult(prompt_tokens=1000, completion_tokens=20)]
    record.server.startup_s = 7.0
    return record


def test_a_prefill_within_the_first_decode_line_is_prefill(tmp_path):
    record = measured(tmp_path)
    history = History.of([record])
    again, known = history.run_s(record.point, 1000)
    assert known and again == pytest.approx(11.0)
    # Outputs of the task ended after 20 of 512 tokens; one that may not end writes them all.
    endless = record.point.model_copy(update={"ignore_eos": True})
    assert history.run_s(endless, 1000)[0] == pytest.approx(10.0 + 512 * 0.05)


def test_the_plan_says_what_its_times_rest_on(tmp_path, monkeypatch):
    monkeypatch.setattr(listing.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    said = text(plan(tmp_path, "arm=native"))
    assert "no record tells the times, which are assumed: 30 s a server start, 3,000 tokens/s" in said
    assert "busy" not in said
    record = measured(tmp_path)
    write_record(tmp_path, record)
    said = text(plan(tmp_path, "arm=native"))
    assert "the times rest on stored records of the same model and hardware" in said
    assert "assumed" not in said
    monkeypatch.setattr(listing.os, "getloadavg", lambda: (9.5, 0.0, 0.0))
    monkeypatch.setattr(listing, "usable_cores", lambda: 2)
    assert "9.5 processes want its 2 cores" in text(plan(tmp_path, "arm=native"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("arm=native",), True),
        (("arm=native", "repetition_penalty=1"), False),
        (("arm=dense",), False),
    ],
)
def test_a_relaxed_penalty_is_noted(tmp_path, words, said):
    found = list(notes(plan(tmp_path, *words)))
    assert len(found) == said
    assert all("repetition_penalty=1.15 is relaxed under speculation" in note for note in found)
