"""Whole command lines: boots in their own processes, faults, resume, two harnesses at once."""

import contextlib
import signal
import subprocess
import time
from collections import Counter

import pytest

from harness.records import Outcome, iter_record_dirs, read_all
from harness.server.launch import BOOT_MARK
from harness.server.processes import find_orphans, free_port
from harness.sweep import multirun

SMOKE = ("experiment=smoke", "force.context=512")


def outcomes(sweep) -> Counter:
    records, errors = read_all(sweep.results)
    assert errors == []
    return Counter(record.outcome for record in records)


def starts(sweep) -> int:
    return len(list((sweep.results / "logs" / "servers").glob("*.log")))


def test_an_experiment_runs_and_the_second_time_starts_nothing(sweep):
    first = sweep.run(*SMOKE)
    assert first.returncode == 0, first.stderr
    assert outcomes(sweep) == {Outcome.OK: 4}
    assert starts(sweep) == 4
    again = sweep.run(*SMOKE)
    assert again.returncode == 0, again.stderr
    assert starts(sweep) == 4


def test_a_multirun_sweep_is_one_job_a_boot(sweep):
    done = sweep.run("-m", "arm=native,dense", "context=512,1024", "max_new_tokens=8", "input.params.keys=8")
    assert done.returncode == 0, done.stderr
    assert outcomes(sweep) == {Outcome.OK: 4}
    assert starts(sweep) == 2
    said = done.stdout + done.stderr
    assert "#1 :" in said
    assert "#2 :" not in said
    assert [f"[{number}/4]" in said for number in range(1, 5)] == [True] * 4, "counted over all jobs"
    assert "boot 1 of 2, tiny native" in said and "boot 2 of 2, tiny dense" in said
    assert said.count("note: repetition_penalty=1.15 is relaxed") == 1


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("oom_start", Outcome.OUT_OF_MEMORY_AT_START),
        ("die_prefill", Outcome.SERVER_DIED),
        ("die_decode", Outcome.SERVER_DIED),
        ("hang", Outcome.STALLED),
    ],
)
def test_a_fault_of_one_boot_is_its_record_and_the_others_run(sweep, fault, outcome):
    sweep.server = {"fault": fault, "only_boots_with": "--speculative-num-draft-tokens"}
    done = sweep.run(*SMOKE, "only.arm=[dense,native]", "server.stall_limit_s=5")
    assert outcomes(sweep) == {outcome: 1, Outcome.OK: 1}, done.stderr
    assert done.returncode == (0 if outcome is Outcome.OUT_OF_MEMORY_AT_START else 1)
    # Mended: a failure is measured again, memory failures are results and stay.
    sweep.server = {}
    sweep.run(*SMOKE, "only.arm=[dense,native]")
    settled = outcome is Outcome.OUT_OF_MEMORY_AT_START
    assert outcomes(sweep) == ({outcome: 1, Outcome.OK: 1} if settled else {Outcome.OK: 2})


@pytest.mark.parametrize(
    ("server", "words", "said"),
    [
        ({}, ("context=900000",), ": does_not_fit - package:tiny serves 131072 tokens"),
        ({"accept": 1}, ("context=512", "max_new_tokens=48"), "not one draft was accepted in 47 steps"),
        ({}, ("context=512", "max_new_tokens=3"), "too few"),
    ],
)
def test_a_single_point_without_a_measurement_is_exit_status_1(sweep, server, words, said):
    sweep.server = server
    done = sweep.run("arm=native", "input.params.keys=8", *words)
    assert done.returncode == 1 and said in done.stdout
    (record,), _ = read_all(sweep.results)
    assert done.stdout.splitlines()[-1] == f"record: {sweep.results}/points/{record.key}"
    study = sweep.run("-m", "arm=native", "input.params.keys=8", *words)
    assert study.returncode == 0, "in a study it is a result"


def test_a_stored_record_is_no_fresh_run(sweep):
    words = ("arm=native", "context=512", "max_new_tokens=24", "input.params.keys=8")
    first, again, anew = (sweep.run(*words, *more) for more in ((), (), ("retry=all",)))
    assert [done.returncode for done in (first, again, anew)] == [0, 0, 0], first.stderr
    assert ["(stored earlier, " in done.stdout for done in (first, again, anew)] == [False, True, False]
    assert "retry=all measures it again" in again.stdout


def test_a_server_that_lost_a_part_is_not_waited_for(sweep):
    sweep.server = {"fault": "lose_part"}
    done = sweep.run("arm=native", "context=512", "max_new_tokens=24", "input.params.keys=8")
    assert outcomes(sweep) == {Outcome.SERVER_DIED: 1}, done.stderr
    (record,), _ = read_all(sweep.results)
    assert record.reason.startswith("Subprocess detokenizer (pid=9) crashed with exit code -9")


def test_a_disk_that_fills_is_a_sentence_and_a_rerun_completes(sweep):
    point = ("-m", "arm=dense", "context=512", "max_new_tokens=8", "input.params.keys=8")
    sweep.limit = 1 << 19  # bytes of a file, as a full disk has none left
    done = sweep.run(*point)
    assert done.returncode == 1 and "cannot write" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    sweep.limit = None
    again = sweep.run(*point)
    assert outcomes(sweep) == {Outcome.OK: 1}, again.stderr


def test_a_probe_that_left_nothing_is_no_measurement(sweep):
    done = sweep.run("arm=native", "probe=attention_mass", "context=512", "max_new_tokens=8",
                     "input.params.keys=8")  # fmt: skip
    assert outcomes(sweep) == {Outcome.INVALID: 1}, done.stderr
    (record,), _ = read_all(sweep.results)
    assert "attention_mass probe left nothing" in record.reason
    assert record.requests, "what was measured is kept"
    assert list((sweep.results / "logs" / "probes").iterdir())


def test_an_input_that_cannot_be_built_needs_no_server(sweep):
    done = sweep.run("-m", "arm=dense", "context=64,512", "max_new_tokens=8", "input.params.keys=8")
    assert outcomes(sweep) == {Outcome.INVALID: 1, Outcome.OK: 1}, done.stderr
    reasons = {record.point.context_tokens: record.reason for record in read_all(sweep.results)[0]}
    assert reasons[64].startswith("no input can be built: 64 tokens are too few")
    before = starts(sweep)
    assert sweep.run("arm=dense", "context=64", "max_new_tokens=8", "input.params.keys=8").returncode == 1
    assert starts(sweep) == before


def test_a_server_that_runs_with_other_arguments_is_no_measurement(sweep):
    sweep.server = {"reports": {"speculative_num_draft_tokens": 4, "disable_radix_cache": False}}
    done = sweep.run("arm=native", "context=512", "max_new_tokens=8", "input.params.keys=8")
    assert outcomes(sweep) == {Outcome.INVALID: 1}, done.stderr
    (record,), _ = read_all(sweep.results)
    assert "speculative_num_draft_tokens is 4, not 7" in record.reason
    assert "disable_radix_cache is False, not True" in record.reason
    assert not record.requests, "nothing is measured on it"


def test_a_pool_too_small_is_found_before_the_prefill(sweep):
    done = sweep.run("arm=dense", "context=512", "max_new_tokens=8", "input.params.keys=8",
                     "server.max_total_tokens=300")  # fmt: skip
    assert outcomes(sweep) == {Outcome.DOES_NOT_FIT: 1}, done.stderr
    logs = list((sweep.results / "logs" / "servers").glob("*.log"))
    assert b"#new-token: 512" not in logs[0].read_bytes()


def test_what_to_raise_where_a_pool_is_too_small_is_what_sizes_it(sweep):
    words = ("arm=dense", "context=512", "max_new_tokens=8", "input.params.keys=8")
    for setting in ("server.max_total_tokens=200", "kv_budget_mib=1"):
        sweep.run(*words, setting, "batch=4", "retry=all")
        reasons = [record.reason for record in read_all(sweep.results)[0]]
        assert any(f"raise {setting.partition('=')[0]}, lower" in reason for reason in reasons), reasons


def test_more_memory_is_worth_another_try(sweep):
    point = ("arm=dense", "context=512", "max_new_tokens=8", "input.params.keys=8")
    sweep.run(*point, "server.max_total_tokens=300")
    sweep.run(*point, "server.max_total_tokens=900")
    assert outcomes(sweep) == {Outcome.OK: 1}


def test_batches_share_one_prefill(sweep):
    done = sweep.run("-m", "arm=native", "batch=1,2,4", "context=512", "share_prefill=true",
                     "max_new_tokens=90", "input.params.keys=8", "ignore_eos=true")  # fmt: skip
    assert outcomes(sweep) == {Outcome.OK: 3}, done.stderr
    assert starts(sweep) == 1
    log = next((sweep.results / "logs" / "servers").glob("*.log")).read_bytes()
    assert log.count(b"#new-token: 512") == 4
    for record in read_all(sweep.results)[0]:
        assert set(record.decode_steps.running_requests) == {record.point.batch}
        assert len(record.requests) == record.point.batch
        assert record.extras["shared_prefill"]["batches"] == [4, 2, 1]


def test_a_shared_prefill_whose_outputs_end_early_is_invalid_not_silently_short(sweep):
    sweep.server = {"fault": "eos"}
    sweep.run("-m", "arm=native", "batch=1,2,4", "context=512", "share_prefill=true",
              "max_new_tokens=24", "input.params.keys=8")  # fmt: skip
    assert set(outcomes(sweep)) == {Outcome.INVALID}
    assert "share_prefill=false" in read_all(sweep.results)[0][0].reason


def test_two_harnesses_on_one_directory_do_no_point_twice(sweep, tmp_path):
    sweep.server = {"start_s": 0.5, "prefill_s": 0.2, "step_s": 0.01}
    both = [sweep.start(*SMOKE, log=tmp_path / f"{i}.log") for i in range(2)]
    for process in both:
        process.wait(300)
    assert outcomes(sweep) == {Outcome.OK: 4}
    timed = sum(
        path.read_bytes().count(b"#new-token: 512")
        for path in (sweep.results / "logs" / "servers").glob("*.log")
    )
    assert timed == 4
    assert list((sweep.results / "locks").glob("*.lock")) == []


def test_a_killed_worker_is_a_record_and_the_sweep_goes_on(sweep, tmp_path):
    sweep.server = {"step_s": 0.2}
    log = tmp_path / "log"
    process = sweep.start(*SMOKE, "only.arm=[dense,native]", log=log)
    worker = _first_worker(process)
    worker.kill()
    process.wait(300)
    assert outcomes(sweep) == {Outcome.INTERRUPTED: 1, Outcome.OK: 1}, log.read_text()
    assert "SIGKILL" in next(r.reason for r in read_all(sweep.results)[0] if r.outcome != Outcome.OK)
    assert find_orphans(BOOT_MARK, _boot_ids(sweep)) == []


def test_ctrl_c_stops_everything_and_leaves_no_record_of_what_was_not_reached(sweep, tmp_path):
    sweep.server = {"step_s": 0.5}
    process = sweep.start(*SMOKE, log=tmp_path / "log")
    _first_worker(process)
    subprocess.run(["kill", "-TERM", str(process.pid)], check=True)
    assert process.wait(60) != 0
    assert list(iter_record_dirs(sweep.results)) == []
    assert find_orphans(BOOT_MARK, _boot_ids(sweep)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
@pytest.mark.parametrize("words", [("arm=native", "context=512", "input.params.keys=8"), SMOKE],
                         ids=["point", "experiment"])  # fmt: skip
def test_a_signal_while_a_server_loads_ends_like_ctrl_c(sweep, tmp_path, number, words):
    sweep.server = {"start_s": 600}
    log = tmp_path / "log"
    process = sweep.start(*words, log=log)
    deadline = time.monotonic() + 120
    while not (booted := _boot_ids(sweep)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert booted, log.read_text()
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert (
        log.read_text().splitlines()[-1] == f"stopped by {number.name}: run the same command again to go on"
    )
    assert "Traceback" not in log.read_text()
    assert list((sweep.results / "locks").glob("*.lock")) == list(iter_record_dirs(sweep.results)) == []
    assert _boot_ids(sweep) == []


def test_a_results_folder_that_moves_while_a_server_loads_is_said_at_once(sweep, tmp_path):
    sweep.server = {"start_s": 240}
    words = ("arm=dense", "context=512", "max_new_tokens=8", "input.params.keys=8")
    process = sweep.start(*words, log=tmp_path / "out")
    deadline = time.monotonic() + 60
    while not starts(sweep) and time.monotonic() < deadline:
        time.sleep(0.2)
    sweep.results.rename(tmp_path / "elsewhere")
    assert process.wait(60) == 1
    assert "was moved or removed" in (tmp_path / "out").read_text()
    assert outcomes(sweep) == {Outcome.INTERRUPTED: 1}


def test_a_running_server_is_checked_measured_and_left_running(sweep, tmp_path):
    point = ("arm=ring", "depth=3", "context=512", "max_new_tokens=24", "input.params.keys=8")
    spec = multirun.plan_of([*multirun.normalised(point), "hardware=cpu"]).boots[0].spec
    port, log = free_port(), tmp_path / "server.log"
    command = [str(sweep.interpreter), *spec.command(port)[1:]]
    with log.open("wb") as file:
        server = subprocess.Popen(
            command, env={**sweep.environment(), **spec.environment()}, stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + 60
        while b"fired up" not in log.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.05)
        url = ("server=url", f"server.url=http://127.0.0.1:{port}", f"server.log_path={log}")
        other = sweep.run(*point, *url, "window=60")
        assert outcomes(sweep) == {Outcome.INVALID: 1}, other.stderr
        assert "speculative_draft_window_size is 252, not 60" in read_all(sweep.results)[0][0].reason
        done = sweep.run(*point, *url)
        assert done.returncode == 0, done.stderr
        good = next(r for r in read_all(sweep.results)[0] if r.outcome is Outcome.OK)
        assert len(good.decode_steps) > 5
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("multirun", [(), ("-m",)])
def test_a_running_server_that_is_not_there_is_refused_and_nothing_is_recorded(sweep, tmp_path, multirun):
    (tmp_path / "log").write_text("")
    address = f"http://127.0.0.1:{free_port()}"
    point = ("arm=native", "context=512", "max_new_tokens=24", "input.params.keys=8")
    done = sweep.run(
        *multirun, *point, "server=url", f"server.url={address}", f"server.log_path={tmp_path}/log"
    )
    assert done.returncode == 1
    assert f"error: no answer from {address}/server_info: Connection refused: start" in done.stderr
    assert "loading" not in done.stderr
    assert list(iter_record_dirs(sweep.results)) == []


def _first_worker(process):
    import psutil

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):  # a process may end while it is looked at
                if "harness.sweep.worker" in child.cmdline() and any(
                    "--port" in grandchild.cmdline() for grandchild in child.children(recursive=True)
                ):
                    time.sleep(0.5)
                    return child
        time.sleep(0.05)
    raise AssertionError("no worker started a server")


def _boot_ids(sweep):
    """Only what belongs to this test: boots whose command names its interpreter."""
    return [
        p.environ().get(BOOT_MARK) for p in find_orphans(BOOT_MARK) if str(sweep.interpreter) in p.cmdline()
    ]
