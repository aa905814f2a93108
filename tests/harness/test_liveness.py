"""Liveness is judged by the scheduler's progress, never by /health alone."""

from __future__ import annotations

import pytest

from harness.server.liveness import Limits, Liveness, Verdict

LIMITS = Limits(start_s=600, stall_s=100, healthy_factor=2.0, stopped_s=30)


def served() -> Liveness:
    state = Liveness(0.0, LIMITS)
    state.ready(95)
    state.request_sent(100)
    return state


def test_a_long_prefill_with_refused_health_is_alive_all_along():
    state = Liveness(0, Limits())
    events = [
        (0, None), (95, state.ready), (100, state.request_sent), (130, "503"), (131, state.scheduler_line),
        (160, "503"), (161, state.scheduler_line), (700, state.scheduler_line), (705, state.request_done),
    ]  # fmt: skip
    for time_s, event in events:
        if event == "503":
            state.health(time_s, ok=False)
        elif event is not None:
            event(time_s)
        assert state.judge(time_s).verdict is Verdict.ALIVE
    assert state.judge(100_000).reason == "idle"


def test_a_prefill_of_any_length_lives_while_chunks_arrive():
    state = served()
    for time_s in range(190, 10_000, 90):
        state.scheduler_line(time_s)
        assert state.judge(time_s + 89).verdict is Verdict.ALIVE


def test_silence_beyond_the_limit_is_a_stall():
    state = served()
    state.scheduler_line(150)
    assert state.judge(250).verdict is Verdict.ALIVE
    judgement = state.judge(251)
    assert judgement.verdict is Verdict.STALLED
    assert judgement.silent_s == 101
    assert "no scheduler line" in judgement.reason


def test_refused_health_does_not_shorten_and_good_health_only_postpones():
    state = served()
    state.health(199, ok=False)
    assert state.judge(200).verdict is Verdict.ALIVE
    state.health(250, ok=True)
    assert state.judge(299).verdict is Verdict.ALIVE
    for time_s in range(251, 301):
        state.health(time_s, ok=True)
    assert state.judge(301).verdict is Verdict.STALLED  # health 200 while the scheduler hangs


def test_health_from_before_the_last_progress_says_nothing():
    state = served()
    state.health(120, ok=True)
    state.scheduler_line(130)
    assert state.judge(231).verdict is Verdict.STALLED


def test_an_idle_server_may_be_silent_and_a_new_request_starts_the_clock():
    state = served()
    state.request_done(110)
    assert state.judge(5000).verdict is Verdict.ALIVE
    state.request_sent(5000, count=2)
    state.request_done(5050)
    assert state.judge(5149).verdict is Verdict.ALIVE
    assert state.judge(5151).verdict is Verdict.STALLED


def test_starting():
    state = Liveness(10.0, LIMITS)
    assert state.judge(610).verdict is Verdict.ALIVE
    assert "not ready" in state.judge(611).reason


@pytest.mark.parametrize("state_name", ["zombie", "gone"])
def test_an_ended_process_is_dead_whatever_else_is_seen(state_name):
    state = served()
    state.process_state(101, state_name)
    state.scheduler_line(102)
    state.health(103, ok=True)
    assert state.judge(104).verdict is Verdict.DEAD
    state.exited(105, -9)
    assert "exit status" not in state.judge(106).reason  # the first observation stays


def test_a_stopped_process_is_a_stall_before_the_silence_is():
    state = served()
    state.process_state(110, "stopped")
    state.process_state(120, "stopped")
    assert state.judge(140).verdict is Verdict.ALIVE
    assert state.judge(141).verdict is Verdict.STALLED
    state.process_state(142, "sleeping")
    assert state.judge(143).verdict is Verdict.ALIVE


def test_times_out_of_order_do_not_turn_back_progress():
    state = served()
    state.scheduler_line(180)
    state.scheduler_line(150)
    assert state.judge(279).verdict is Verdict.ALIVE


def test_senseless_limits():
    with pytest.raises(ValueError, match="positive"):
        Limits(stall_s=0)
    with pytest.raises(ValueError, match="healthy_factor"):
        Limits(healthy_factor=0.5)
