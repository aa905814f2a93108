"""Parts of an iteration on a clock that only the test moves: each moment belongs to the innermost part."""

from __future__ import annotations

import pytest

from harness.engine.probes.marks import Recorder, exclusive_ns


class FakeClock:
    source = "fake"

    def __init__(self):
        self.now = 0
        self.readable_until = None

    def start(self):
        pass

    def mark(self):
        return self.now

    def ready(self, mark):
        return self.readable_until is None or mark <= self.readable_until

    def between_ns(self, first, second):
        return second - first


@pytest.fixture
def recorder():
    lines, opened = [], []

    def open_range(name):
        opened.append(name)
        return lambda: opened.append(f"/{name}")

    made = Recorder(FakeClock(), lines.append, open_range)
    made.lines, made.opened = lines, opened
    return made


def spend(recorder, ns):
    recorder.clock.now += ns


def iteration(recorder, *, step, facts=None):
    recorder.begin(step=step)
    spend(recorder, 1)
    recorder.enter("draft")
    spend(recorder, 10)
    for _ in range(2):
        recorder.enter("draft_forward", numbered=True)
        spend(recorder, 100)
        recorder.enter("draft_index")
        spend(recorder, 1000)
        recorder.leave()
        spend(recorder, 100)
        recorder.leave()
    recorder.leave()
    recorder.enter("verify_forward")
    spend(recorder, 7)
    recorder.leave()
    spend(recorder, 3)
    recorder.end(facts)


def test_each_moment_belongs_to_the_innermost_part(recorder):
    iteration(recorder, step=1)
    (line,) = recorder.lines
    assert line["parts_ns"] == {
        "unattributed": 4, "draft": 10, "draft_forward.0": 200, "draft_forward.1": 200, "draft_index": 2000,
        "verify_forward": 7,
    }  # fmt: skip
    assert sum(line["parts_ns"].values()) == line["worker_ns"] == 2421
    assert line["since_previous_ns"] is None
    assert not recorder.is_open


def test_an_iteration_knows_how_long_ago_the_one_before_began(recorder):
    iteration(recorder, step=1)
    spend(recorder, 50)
    iteration(recorder, step=2)
    recorder.interrupt()
    iteration(recorder, step=4)
    assert [line["since_previous_ns"] for line in recorder.lines] == [None, 2471, None]
    # The second iteration numbers its forwards from 0 again.
    assert set(recorder.lines[1]["parts_ns"]) == set(recorder.lines[0]["parts_ns"])


def test_marks_that_cannot_be_read_yet_wait_in_order(recorder):
    recorder.clock.readable_until = -1
    iteration(recorder, step=1, facts=lambda: {"accepted": [2]})
    iteration(recorder, step=2)
    assert recorder.lines == []
    recorder.clock.readable_until = recorder.clock.now
    recorder.flush()
    assert [line["step"] for line in recorder.lines] == [1, 2]
    assert recorder.lines[0]["accepted"] == [2]


def test_a_failed_iteration_leaves_no_line_and_no_open_range(recorder):
    recorder.begin(step=1)
    recorder.enter("draft")
    recorder.drop()
    iteration(recorder, step=2)
    assert [(line["step"], line["since_previous_ns"]) for line in recorder.lines] == [(2, None)]
    opened = [name for name in recorder.opened if not name.startswith("/")]
    assert sorted(opened) == sorted(name[1:] for name in recorder.opened if name.startswith("/"))


def test_ranges_nest_like_the_parts(recorder):
    recorder.begin()
    recorder.enter("draft")
    recorder.enter("draft_index")
    recorder.leave()
    recorder.leave()
    recorder.end()
    assert recorder.opened == ["iteration", "draft", "draft_index", "/draft_index", "/draft", "/iteration"]


def test_no_time_is_lost_or_counted_twice():
    segments = [("a", 0), ("b", 5), ("a", 7), ("c", 7), ("a", 20)]
    assert exclusive_ns(segments, 21, FakeClock()) == {"a": 6, "b": 2, "c": 13}
