"""What a killed run leaves behind is put right."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from harness import boots, setaside
from harness.compose import load
from harness.errors import ConfigError, RecordError
from harness.points import make_point
from harness.records import Outcome, points_dir, read_anywhere, read_log, read_record, write_record
from harness.server.spec import ServerSpec
from harness.study import outcome_of
from harness.sweep import execute, multirun, store, unkeyed
from harness.sweep.cells import expand
from harness.sweep.execute import failure_record, record_missing, recorded_since, run_planned
from harness.sweep.locks import Owner, PointLocks
from harness.sweep.plan import Plan, PlannedPoint, State, make_plan
from tests.harness.test_spec import BASE

FIELDS = {
    "model": "m", "checkpoint": "c", "hardware": "cpu", "arm": "dense", "depth": 1, "context_tokens": 100,
    "task": "cwe", "draft_backend": "-",
}  # fmt: skip
POINT = make_point(FIELDS)


def test_a_record_is_of_this_run_by_what_it_is_not_by_its_time(tmp_path):
    """Clocks are set back during runs, and machines of a cluster differ."""
    write_record(tmp_path, failure_record(POINT, Outcome.SERVER_DIED, "the old one"))
    planned = PlannedPoint(POINT, State.TO_RUN, before=store.mark(POINT, tmp_path))
    plan = Plan(str(tmp_path), "failed", "cpu", (), created_at="2999-01-01T00:00:00+00:00")
    assert recorded_since(plan, planned) is None
    measured = failure_record(POINT, Outcome.OK, "").model_copy(
        update={"started_at": "1970-01-01T00:00:00+00:00"}
    )
    write_record(tmp_path, measured)
    assert recorded_since(plan, planned) == measured
    assert record_missing(plan, [planned], "its job ended") == []
    assert read_record(points_dir(tmp_path) / POINT.key) == measured


def recover(results):
    with PointLocks(results) as locks:
        return store.recover(results, locks)


def test_nothing_to_do(tmp_path):
    assert recover(tmp_path) == []
    write_record(tmp_path, failure_record(POINT, Outcome.OK, ""))
    assert recover(tmp_path) == []


def test_scratch_and_empty_directories_go(tmp_path):
    parent = points_dir(tmp_path)
    (parent / f".{POINT.key}.abcd.tmp").mkdir(parents=True)
    (parent / f".{POINT.key}.abcd.tmp" / "record.json").write_text("{half")
    (parent / "0123456789abcdef").mkdir()
    assert len(recover(tmp_path)) == 2
    assert list(parent.iterdir()) == []


def test_a_record_lost_between_two_renames_comes_back(tmp_path):
    final = write_record(tmp_path, failure_record(POINT, Outcome.OK, "the old one"))
    final.rename(final.parent / f".{POINT.key}.abcd.old")
    assert "is back" in recover(tmp_path)[0]
    assert read_record(final).reason == "the old one"


def test_an_old_copy_goes_where_the_new_record_is_there(tmp_path):
    final = write_record(tmp_path, failure_record(POINT, Outcome.OK, "new"))
    (final.parent / f".{POINT.key}.abcd.old").mkdir()
    recover(tmp_path)
    assert [p.name for p in final.parent.iterdir()] == [POINT.key]


def test_what_another_harness_works_on_is_left_alone(tmp_path):
    other = PointLocks(tmp_path)
    other.acquire(POINT.key)
    scratch = points_dir(tmp_path) / f".{POINT.key}.abcd.tmp"
    scratch.mkdir(parents=True)
    assert recover(tmp_path) == []
    assert scratch.exists()


def test_locks_of_the_dead_go(tmp_path):
    locks = PointLocks(tmp_path, owner=Owner("gone-host", 1, 0.0, "t"))
    locks.acquire(POINT.key)
    (path,) = locks.directory.glob("*.lock")
    recover(tmp_path)
    assert path.exists(), "fresh: its owner may live"
    os.utime(path, (1, 1))
    recover(tmp_path)
    assert not path.exists()


def test_a_damaged_record_is_measured_again(tmp_path):
    final = write_record(tmp_path, failure_record(POINT, Outcome.OK, ""))
    assert store.finished(POINT, tmp_path, "failed") is not None
    (final / "record.json").write_text("{")
    assert store.finished(POINT, tmp_path, "none") is None


def test_a_probe_of_another_window_is_another_setting(tmp_path):
    point = make_point({**FIELDS, "arm": "native", "depth": 7, "probe": "decision"})
    record = failure_record(point, Outcome.OK, "")
    record.extras["decision_probe"] = {"window_tokens": 252, "sink_tokens": 4}

    def other(*windows):
        spec = ServerSpec(**{**BASE, "arm": "native", "window_tokens": None, "sink_tokens": None},
                          probe="decision", probe_windows=windows)  # fmt: skip
        return store.other_settings(record, spec)

    assert other((252, 4), (60, 4)) == ""
    assert "the probe's window was 252+4, is 60+4: retry=all" in other((60, 4), (252, 4))
    assert "is 252+8" in other((252, 8))


def test_a_failure_never_takes_a_measurements_place(tmp_path):
    final = write_record(tmp_path, failure_record(POINT, Outcome.OK, "measured"), b"its log")
    before = store.mark(POINT, tmp_path)
    aside = write_record(tmp_path, failure_record(POINT, Outcome.STARTUP_TIMEOUT, "slow"), b"another log")
    assert read_record(final).reason == "measured" and read_log(final) == b"its log"
    assert read_anywhere(aside).reason == "slow" and read_log(aside) == b"another log"
    assert store.mark(POINT, tmp_path) != before, "the point was tried since"
    again = store.failed_attempt(POINT, tmp_path, before)
    assert again is not None and again.reason == "slow"
    assert store.failed_attempt(POINT, tmp_path, store.mark(POINT, tmp_path)) is None


def test_a_measurement_that_is_measured_again_is_set_aside(tmp_path):
    for reason in ("first", "second", "third"):
        final = write_record(tmp_path, failure_record(POINT, Outcome.OK, reason), reason.encode())
    assert read_record(final).reason == "third"
    kept = setaside.entries(tmp_path, POINT.key)
    assert [read_anywhere(path).reason for path in kept] == ["first", "second"]
    assert [read_log(path) for path in kept] == [b"first", b"second"]


def test_a_failure_gives_way_to_whatever_comes_next(tmp_path):
    write_record(tmp_path, failure_record(POINT, Outcome.SERVER_DIED, "first"))
    final = write_record(tmp_path, failure_record(POINT, Outcome.INTERRUPTED, "second"))
    write_record(tmp_path, failure_record(POINT, Outcome.OK, "third"))
    assert read_record(final).reason == "third" and setaside.entries(tmp_path, POINT.key) == []


@pytest.mark.parametrize("spoil", ["edit", "add", "link"])
def test_what_cannot_be_read_or_is_not_ours_is_set_aside(tmp_path, spoil):
    final = write_record(tmp_path, failure_record(POINT, Outcome.SERVER_DIED, "first"), b"its log")
    path = final / "record.json"
    if spoil == "edit":
        path.write_text(path.read_text().replace("first", "a note"))
        assert "edited" in store.unreadable(POINT, tmp_path)
    elif spoil == "add":
        (final / "notes.txt").write_text("mine")
    else:
        path.unlink()
        path.symlink_to(tmp_path / "unmounted.json")
        assert "left alone" in recover(tmp_path)[0]
    write_record(tmp_path, failure_record(POINT, Outcome.OK, "second"))
    (kept,) = setaside.entries(tmp_path, POINT.key)
    assert read_log(kept) == b"its log" and read_record(final).reason == "second"
    assert spoil != "add" or (kept / "notes.txt").read_text() == "mine"


def test_a_folder_without_a_record_but_with_files_is_left_alone(tmp_path):
    final = write_record(tmp_path, failure_record(POINT, Outcome.OK, ""), b"its log")
    (final / "record.json").rename(final / "record.json.bak")
    (said,) = recover(tmp_path)
    assert "left alone" in said and sorted(p.name for p in final.iterdir()) == [
        "record.json.bak",
        "server.log.gz",
    ]


def test_a_kill_before_the_old_record_was_set_aside_loses_neither(tmp_path):
    final = write_record(tmp_path, failure_record(POINT, Outcome.OK, "old"))
    old = final.parent / f".{POINT.key}.abcd.old"
    final.rename(old)
    write_record(tmp_path, failure_record(POINT, Outcome.OK, "new"))
    shutil.copytree(final, old)
    (said,) = recover(tmp_path)
    first, second = setaside.entries(tmp_path, POINT.key)
    assert "set aside" in said and read_anywhere(first).reason == "old" and read_record(final).reason == "new"
    assert read_anywhere(second).reason == "new"


def test_the_plan_names_a_damaged_record_and_a_failed_second_attempt_is_told(tmp_path):
    config = load(["hardware=cpu"])
    (point,) = expand(config)[0].points()
    final = write_record(tmp_path, failure_record(point, Outcome.OK, "good"))
    made = make_plan(expand(config), tmp_path, "all")
    write_record(tmp_path, failure_record(point, Outcome.STARTUP_TIMEOUT, "slow"))
    outcome = outcome_of(made)
    assert not outcome.complete and "the record from before stands" in outcome.missing[0]
    path = final / "record.json"
    path.write_text(path.read_text().replace("good", "fine"))
    (planned,) = make_plan(expand(config), tmp_path, "failed").points
    assert planned.state is State.TO_RUN and "edited" in planned.reason and "set aside" in planned.reason


def test_a_record_of_another_release_is_not_replaced(tmp_path):
    config = load(["hardware=cpu"])
    (point,) = expand(config)[0].points()
    path = write_record(tmp_path, failure_record(point, Outcome.OK, "")) / "record.json"
    other = path.read_text().replace('"schema_version": 1', '"schema_version": 2')
    path.write_text(other)
    for retry in ("failed", "all"):
        (planned,) = make_plan(expand(config), tmp_path, retry).points
        assert planned.state is State.CANNOT_RUN and "schema version 2" in planned.reason
    assert path.read_text() == other


def test_a_lock_that_cannot_be_written_is_nobodys(tmp_path, monkeypatch):
    locks = PointLocks(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        locks.acquire("k")
    monkeypatch.undo()
    assert PointLocks(tmp_path).acquire("k")


def test_a_full_disk_is_found_before_a_server_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    plan = make_plan(expand(load(["hardware=cpu"])), tmp_path)
    with pytest.raises(RecordError, match="No space left on device"):
        run_planned(plan, plan.boots[0], view=None)
    monkeypatch.undo()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


class Watching:
    def point_done(self, record):
        pass


def measured_while(tmp_path, monkeypatch, happening):
    """Runs one point whose measurement ends after something happened to the folder."""
    plan = make_plan(expand(load(["hardware=cpu"])), tmp_path)
    (point,) = (planned.point for planned in plan.points)

    def run(boot, context):
        happening(point)
        boots._store(failure_record(point, Outcome.OK, "measured here"), b"", context)

    monkeypatch.setattr(execute, "run_boot", run)
    said = run_planned(plan, plan.boots[0], Watching(), inputs=object())
    return said, store.stored(point, tmp_path), outcome_of(plan)


@pytest.mark.parametrize("gone", ["locks", ""])
def test_a_finished_measurement_outlives_its_lock(tmp_path, monkeypatch, gone):
    said, record, _ = measured_while(tmp_path, monkeypatch, lambda point: shutil.rmtree(tmp_path / gone))
    assert said == []
    assert record.reason == "measured here"


def test_who_else_measures_a_point_is_said(tmp_path, monkeypatch):
    other = PointLocks(tmp_path)

    def taken(point):
        shutil.rmtree(tmp_path / "locks")
        assert other.acquire(point.key)

    said, record, outcome = measured_while(tmp_path, monkeypatch, taken)
    assert record is None
    assert f"{other.owner.label()} measures it" in said[0]
    assert f"{other.owner.label()} measures it now" in outcome.missing[0]


def test_a_newer_record_of_another_stays(tmp_path, monkeypatch):
    def done(point):
        shutil.rmtree(tmp_path / "locks")
        write_record(tmp_path, failure_record(point, Outcome.OK, "the other's"))

    said, record, _ = measured_while(tmp_path, monkeypatch, done)
    assert "another harness has stored" in said[0]
    assert record.reason == "the other's"


def test_a_nested_result_set_is_left_alone_and_named(tmp_path):
    record = failure_record(POINT, Outcome.OK, "")
    write_record(tmp_path, record)
    parent = points_dir(tmp_path)
    shutil.copytree(parent, parent / "points")
    shutil.copytree(parent / "points", parent / "0123456789abcdef")
    (parent / "notes").mkdir()
    (parent / ".cache").mkdir()
    said = recover(tmp_path)
    assert len(list(parent.rglob("record.json"))) == 3
    assert (parent / "notes").is_dir() and (parent / ".cache").is_dir()
    assert ["move" in text for text in said] == [True] * 3


@pytest.mark.parametrize(
    ("was", "phrase"),
    [
        ("hardware.threads=1", "hardware.threads was 1, is 2"),
        (
            "server.extra_arguments=[--log-level,debug]",
            "server.extra_arguments was --log-level debug, is none",
        ),
        ("hardware.target_backend=torch_native", "hardware.target_backend was torch_native, is intel_amx"),
        ("model.yarn_factor=2", "model.yarn_factor was 2.0, is unset"),
        ("server.python=/other/python", "server.python was /other/python, is unset"),
    ],
)
def test_a_record_of_other_settings_is_told_and_never_taken_for_this_runs(tmp_path, was, phrase):
    then = make_plan(expand(load(["hardware=cpu", was])), tmp_path).boots[0]
    record = failure_record(then.points[0].point, Outcome.OK, "")
    record.server.settings = then.spec.settings
    write_record(tmp_path, record)
    now = make_plan(expand(load(["hardware=cpu", "hardware.threads=2"])), tmp_path)
    (planned,) = now.points
    assert planned.state is State.OTHER
    assert planned.reason == f"done with other settings: {phrase}: retry=all measures it again"
    outcome = outcome_of(now)
    assert outcome.records == [] and phrase in outcome.missing[0] and not outcome.complete
    (again,) = make_plan(expand(load(["hardware=cpu", "hardware.threads=2"])), tmp_path, "all").points
    assert again.state is State.TO_RUN


@pytest.mark.parametrize(
    ("was", "phrase"),
    [
        ("server.mounts=[/data:/data]", "server.mounts was /data:/data, is none"),
        (
            "server.container_arguments=[--cpus,'4']",
            "server.container_arguments was --cpus 4, is none",
        ),
    ],
)
def test_a_container_is_told_by_its_arguments_and_mounts(was, phrase):
    words = ["hardware=cpu", "server=docker", "server.image=i"]
    then, now = (unkeyed.of_cell(cell) for more in ([was], []) for cell in expand(load([*words, *more])))
    assert unkeyed.changes(then, now) == phrase


def test_records_from_before_settings_were_kept_stand(tmp_path):
    plan = make_plan(expand(load(["hardware=cpu"])), tmp_path)
    write_record(tmp_path, failure_record(plan.points[0].point, Outcome.OK, ""))
    assert (
        make_plan(expand(load(["hardware=cpu", "hardware.threads=7"])), tmp_path).points[0].state
        is State.DONE
    )


@pytest.mark.parametrize("sweep", ["hardware.threads=1,2", "server.chunked_prefill_tokens=512,1024"])
def test_a_sweep_that_no_point_tells_apart_is_refused(tmp_path, sweep):
    with pytest.raises(ConfigError, match=f"{sweep.partition('=')[0]} was .* results="):
        multirun.plan_of(["hardware=cpu", f"results={tmp_path}", sweep])


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.mark.parametrize("second", [Outcome.OK, Outcome.SERVER_DIED])
@pytest.mark.parametrize("first", [None, Outcome.OK, Outcome.SERVER_DIED])
@pytest.mark.parametrize("after", range(4))
def test_a_kill_at_any_rename_loses_no_measurement(tmp_path, monkeypatch, first, second, after):
    if first is not None:
        write_record(tmp_path, failure_record(POINT, first, "first"), b"first")
    renames, real = iter(range(99)), Path.rename

    def rename(self, target):
        if next(renames) == after:
            raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with contextlib.suppress(Killed):
        write_record(tmp_path, failure_record(POINT, second, "second"), b"second")
    monkeypatch.undo()
    # The parent of a killed worker writes a failure before anybody puts the folder right.
    write_record(tmp_path, failure_record(POINT, Outcome.INTERRUPTED, "killed"))
    recover(tmp_path)
    final = points_dir(tmp_path) / POINT.key
    places = [final, *setaside.entries(tmp_path, POINT.key)]
    kept = {read_anywhere(path).reason: read_log(path) for path in places}
    measured = {n for n, outcome in (("first", first), ("second", second)) if outcome is Outcome.OK}
    assert {name: name.encode() for name in measured}.items() <= kept.items()
    assert not measured or read_record(final).outcome is Outcome.OK
    assert not measured or read_record(final).reason == max(measured), "the later measurement stands"
    assert [p.name for p in points_dir(tmp_path).iterdir()] == [POINT.key], "nothing of scratch is left"
    assert recover(tmp_path) == []
