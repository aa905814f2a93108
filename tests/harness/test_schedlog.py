"""The scheduler-log parser: shapes, noise, retractions, pools, torn chunks; it never raises."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import schedlog

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
LINE = (
    b"[2026-11-30 05:10:09 TP0] Decode batch, #running-req: 2, #full token: %d, full token usage: 0.14, "
    b"mamba num: 2, mamba usage: 0.1, accept len: 2.50, accept rate: 0.25, cuda graph: True, "
    b"gen throughput (token/s): %.2f, #queue-req: 0\n"
)


def read(name: str) -> schedlog.SchedulerLog:
    return schedlog.parse((LOGS / name).read_bytes())


def test_current_shape_keeps_every_step() -> None:
    log = read("current.log")
    assert [row.throughput_tokens_per_s for row in log.decode] == [0.21, 80.40, 20.30, 61.00]
    assert [row.accept_length for row in log.decode] == [2.0, 4.0, 1.0, 3.0]
    assert [row.resident_tokens for row in log.decode] == [8014, 8018, 8019, 0]
    assert max(row.token_usage or 0 for row in log.decode) == 0.14
    assert [(row.new_tokens, row.cached_tokens, row.pending_tokens) for row in log.prefill] == [
        (4096, 0, 8000),
        (3904, 96, 0),
    ]
    assert (log.unreadable, log.ignored) == (0, 0)


def test_shapes_of_18_months_read_alike() -> None:
    rows = read("shapes.log").decode
    assert [r.running_requests for r in rows] == [6, 16, 3, 9, 1, 2, 1]
    assert [r.resident_tokens for r in rows] == [51200, 4096, 12800, 1200000, 300, 2000000, 245000]
    assert [r.accept_length for r in rows] == [None, 2.31, None, None, 2.50, None, 4.50]
    assert [r.accept_rate for r in rows] == [None, None, None, None, 0.50, None, 0.75]
    assert [r.throughput_tokens_per_s for r in rows] == [150.25, 41.5, 99.9, 801.0, 90.0, 300.0, 400.0]
    assert [r.queued_requests for r in rows] == [0, 12, 0, 2, 0, 1, 0]
    assert [r.pool for r in rows] == [
        "dense", "dense", "dense", "full+mamba", "full+mamba", "full+swa", "full+swa",
    ]  # fmt: skip
    assert [r.rank for r in rows] == ["TP0", "TP0", "DP1 TP0", "", "TP0", "TP0", "TP0 EP0 MOE_DP0"]
    assert rows[-1].time_s is not None and rows[-1].time_s % 1 == 0.25


def test_noise_is_survived_and_counted() -> None:
    log = read("noise.log")
    assert [row.throughput_tokens_per_s for row in log.decode] == [39.0, 58.0, 21.0, 42.0]
    assert [row.accept_length for row in log.decode] == [2.0, 3.0, 1.0, 2.0]
    assert log.unreadable == 2, "a line torn before its throughput, and one torn inside it"
    assert log.ignored == 3, "quoted without a stamp, quoted with one, and inside another message"
    assert log.skipped_parameters == ["mtp.norm"]


def test_retractions_are_counted_without_the_servers_own_test() -> None:
    log = read("retraction.log")
    assert [line.requests for line in log.retractions if not line.test] == [2, 1]
    assert log.retracted_requests == 3
    assert sum(line.test for line in log.retractions) == 1
    assert log.summary()["retraction_events"] == 2


def test_pools_capacity_and_readiness() -> None:
    log = read("start.log")
    assert [(p.role, p.tokens, p.dtype) for p in log.pools] == [
        ("target", 1100000, "bfloat16"),
        ("draft", 16412, "float8_e4m3fn"),
    ]
    assert log.pools[0].bytes == 21 << 30
    assert log.pools[1].bytes == 33613824, "the plugin's exact figure replaces the rounded one"
    assert log.capacity == schedlog.CapacityLine(1100000, 4, 1048576, 8192)
    assert log.ready


def test_pools_with_labels_belong_to_the_target_until_one_without() -> None:
    text = b"[2026-11-30 05:00:02] %sKV Cache is allocated. dtype: bfloat16, #tokens: %d, KV size: 1.0 GB\n"
    log = schedlog.parse(text % (b"Full ", 10) + text % (b"SWA ", 20) + text % (b"", 30))
    assert [(p.role, p.tokens) for p in log.pools] == [("target", 10), ("target", 20), ("draft", 30)]


@pytest.mark.parametrize("name", ["current.log", "shapes.log", "noise.log", "retraction.log", "start.log"])
@pytest.mark.parametrize("size", [1, 3, 64, 1000])
def test_chunks_of_any_size_give_the_same_log(name: str, size: int) -> None:
    data = (LOGS / name).read_bytes()
    follower, events = schedlog.LogFollower(), []
    for at in range(0, len(data), size):
        events += follower.feed(data[at : at + size])
    events += follower.close()
    assert follower.log == schedlog.parse(data)
    assert [e for e in events if isinstance(e, schedlog.DecodeLine)] == follower.log.decode


def test_bulk_reading_keeps_order_and_matches_line_by_line() -> None:
    other = b"[2026-11-30 05:10:09 TP0] Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0\n"
    torn = b"[2026-11-30 05:10:09 TP0] Decode batch, #running-req: 2, #full tok\n"
    lines = []
    for i in range(3000):
        lines.append(LINE % (8000 + i, 50 + i / 100))
        lines += [other] * (i % 700 == 3) + [torn] * (i % 900 == 5)
    log = schedlog.parse(b"".join(lines))
    single = schedlog.LogFollower()
    for line in lines:
        single._shape = None  # every line the slow way
        single.feed(line)
    assert log == single.log
    assert [row.resident_tokens for row in log.decode] == [8000 + i for i in range(3000)]
    assert log.unreadable == 4 and len(log.prefill) == 5 and log.lines == len(lines)


def test_values_that_are_no_numbers_do_not_become_rows() -> None:
    good = LINE % (1, 1.0)
    bad = [
        good.replace(b"1.00,", b"nan,"),
        good.replace(b"1.00,", b"inf,"),
        good.replace(b"1.00,", b"1.2.3,"),
        good.replace(b"#running-req: 2", b"#running-req: 99999999999999999999"),
    ]
    log = schedlog.parse(good + b"".join(bad) + good)
    assert len(log.decode) == 2
    assert log.unreadable == len(bad)


def test_an_impossible_date_has_no_time() -> None:
    log = schedlog.parse((LINE % (1, 1.0)).replace(b"2026-11-30", b"2026-13-45"))
    assert log.decode[0].time_s is None


def test_only_the_first_of_several_ranks_becomes_steps() -> None:
    one = LINE % (5, 10.0)
    log = schedlog.parse(one + one.replace(b"TP0", b"TP1") + one)
    assert len(log.decode) == 3
    assert len(schedlog.to_decode_steps(log)) == 2


@settings(max_examples=200)
@given(st.binary(max_size=300), st.integers(0, 260), st.integers(1, 40))
def test_garbage_never_raises(noise: bytes, at: int, size: int) -> None:
    data = (LINE % (9, 9.0))[:at] + noise + b"\n" + LINE % (7, 7.0)
    follower = schedlog.LogFollower()
    for start in range(0, len(data), size):
        follower.feed(data[start : start + size])
    follower.close()
    assert follower.log.decode[-1].resident_tokens == 7


def line_by_line(data: bytes) -> schedlog.SchedulerLog:
    """The log as read without the layout learned from the lines before."""
    follower = schedlog.LogFollower()
    for line in re.findall(rb"[^\n]*\n", data):
        follower._shape = None
        follower.feed(line)
    return follower.log


def without_pool(log: schedlog.SchedulerLog) -> schedlog.SchedulerLog:
    """The pool's kind is no number of a step; bulk reading takes the layout's."""
    log.decode = [row._replace(pool="") for row in log.decode]
    return log


KEYS = (
    "#running-req", "#full token", "accept len", "accept rate", "gen throughput (token/s)", "#queue-req",
    "cuda graph",
)  # fmt: skip
COUNTS = st.integers(0, 1 << 40).map(str)
NUMBERS = st.builds(
    lambda form, value: form % value,
    st.sampled_from(["%.2f", "%g", "%r", "%.0f", "%e", "+%.3f"]),
    st.floats(0, 1e9),
)
STEPS = st.tuples(COUNTS, COUNTS, NUMBERS, NUMBERS, NUMBERS, COUNTS, st.sampled_from(["True", "False"]))


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)), STEPS), min_size=1, max_size=5
    ),
    st.permutations(range(len(KEYS))),
    st.sampled_from(["\n", "\r\n", ", \n"]),
)
def test_numbers_come_back_as_they_were_written(
    steps: list[tuple[datetime, tuple[str, ...]]], order: list[int], end: str
) -> None:
    text = "".join(
        f"[{moment:%Y-%m-%d %H:%M:%S} TP0] Decode batch, "
        + ", ".join(f"{KEYS[i]}: {values[i]}" for i in order) + end
        for moment, values in steps
    )  # fmt: skip
    log = schedlog.parse(text.encode())
    assert (len(log.decode), log.unreadable, log.ignored) == (len(steps), 0, 0)
    for row, (_, values) in zip(log.decode, steps, strict=True):
        shown = (row.running_requests, row.resident_tokens, row.accept_length, row.accept_rate,
                 row.throughput_tokens_per_s, row.queued_requests)  # fmt: skip
        assert shown == (int(values[0]), int(values[1]), *map(float, values[2:5]), int(values[5]))


OTHER_RANK = (LINE % (9, 9.0)).replace(b"TP0", b"TP1").replace(b"#running-req: 2", b"#running-req: 3").strip()


@settings(max_examples=400)
@given(
    st.integers(0, len(LINE)),
    st.integers(0, 30),
    st.binary(max_size=6)
    | st.tuples(st.integers(0, 180), st.integers(0, 180)).map(lambda cut: OTHER_RANK[min(cut) : max(cut)]),
)
def test_a_damaged_line_reads_alike_in_bulk_and_alone(at: int, cut: int, put: bytes) -> None:
    whole = LINE % (8123, 80.4)
    data = whole + (whole[:at] + put + whole[at + cut :]).rstrip(b"\n") + b"\n" + whole
    assert without_pool(schedlog.parse(data)) == without_pool(line_by_line(data))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"#running-req: 2", b"#running-req: 2.5"),
        (b"#running-req: 2", b"#running-req: -2"),
        (b"(token/s): 1.00", b"(token/s): -1.00"),
        (b"accept rate: 0.25", b"accept rate: 0.25, #running-req: 3"),
    ],
)
def test_impossible_and_contradicting_values_are_no_step(old: bytes, new: bytes) -> None:
    for good in (b"", LINE % (1, 1.0)):
        log = schedlog.parse(good + (LINE % (1, 1.0)).replace(old, new))
        assert (len(log.decode), log.unreadable) == (bool(good), 1)
