import gzip
import json
import math
import shutil

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import records
from harness.errors import RecordError
from harness.points import make_point
from harness.records import (
    DIGEST,
    DecodeSteps,
    Outcome,
    Record,
    RequestResult,
    read_all,
    read_log,
    read_record,
    write_record,
)

POINT = make_point(
    {
        "model": "tiny",
        "checkpoint": "c0ffee",
        "hardware": "cpu",
        "arm": "dense",
        "depth": 1,
        "context_tokens": 512,
        "task": "niah_single",
        "draft_backend": "-",
    }
)


def a_record(**changes):
    values = {
        "key": POINT.key,
        "point": POINT,
        "outcome": Outcome.OK,
        "started_at": "2026-01-01T00:00:00+00:00",
        "decode_steps": DecodeSteps(
            time_s=[1.0], running_requests=[1], resident_tokens=[513], accept_length=[None],
            throughput_tokens_per_s=[100.0], queued_requests=[0],
        ),
    }  # fmt: skip
    return Record(**{**values, **changes})


def test_round_trip_with_log(tmp_path):
    directory = write_record(tmp_path, a_record(), b"line\n")
    assert directory == tmp_path / "points" / POINT.key
    assert read_record(directory) == a_record()
    assert read_log(directory) == b"line\n"


def test_writing_again_replaces_and_leaves_no_scratch(tmp_path):
    write_record(tmp_path, a_record(outcome=Outcome.TIMEOUT, reason="slow"))
    write_record(tmp_path, a_record())
    assert [p.name for p in (tmp_path / "points").iterdir()] == [POINT.key]
    assert read_record(tmp_path / "points" / POINT.key).outcome is Outcome.OK


def test_a_failed_write_keeps_the_old_record(tmp_path, monkeypatch):
    directory = write_record(tmp_path, a_record())

    def full_disk(path, body):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "_write_synced", full_disk)
    with pytest.raises(RecordError, match="No space left on device"):
        write_record(tmp_path, a_record(outcome=Outcome.TIMEOUT))
    assert read_record(directory).outcome is Outcome.OK
    assert [p.name for p in (tmp_path / "points").iterdir()] == [POINT.key]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "damaged"),
        (b'{"schema_version": 1', "damaged"),
        (b"[]", "holds no record"),
        (b"{}", "holds no record"),
        (orjson.dumps({"schema_version": 99}), "schema version 99"),
        (orjson.dumps({"schema_version": 1, "key": "x"}), "not a valid record"),
        (b"\xff\xfe", "damaged"),
    ],
)
def test_damaged_records_are_named_not_guessed(tmp_path, body, words):
    directory = write_record(tmp_path, a_record())
    (directory / "record.json").write_bytes(body)
    with pytest.raises(RecordError, match=words):
        read_record(directory)
    good, errors = read_all(tmp_path)
    assert good == []
    assert len(errors) == 1


@pytest.mark.parametrize("place", ["file/results", "file"])
def test_a_results_folder_that_cannot_be_made_is_an_error(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="free space or fix the path"):
        write_record(tmp_path / place, a_record())


def test_a_folder_with_an_impossible_name_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="name another folder"):
        read_all(tmp_path / ("x" * 300))


def test_numbers_that_json_lacks_are_kept(tmp_path):
    request = RequestResult(prompt_tokens=1, completion_tokens=1, scores={"strict": math.nan})
    found = read_record(write_record(tmp_path, a_record(requests=[request], duration_s=math.inf)))
    assert math.isnan(found.requests[0].scores["strict"]) and found.duration_s == math.inf


def test_columns_of_different_length_are_damage(tmp_path):
    directory = write_record(tmp_path, a_record())
    raw = orjson.loads((directory / "record.json").read_bytes())
    del raw[DIGEST]
    raw["decode_steps"] = {"running_requests": [1, 1], "throughput_tokens_per_s": [9.0]}
    (directory / "record.json").write_bytes(orjson.dumps(raw))
    with pytest.raises(RecordError, match="different length"):
        read_record(directory)


def test_a_copied_record_does_not_count_twice(tmp_path):
    directory = write_record(tmp_path, a_record())
    shutil.copytree(directory, directory.with_name("copy"))
    good, errors = read_all(tmp_path)
    assert len(good) == 1 and "remove the copy" in str(errors[0])


def test_a_record_from_before_there_was_a_digest_is_read(tmp_path):
    directory = write_record(tmp_path, a_record())
    raw = orjson.loads((directory / "record.json").read_bytes())
    assert len(raw.pop(DIGEST)) == 64
    (directory / "record.json").write_bytes(orjson.dumps(raw))
    assert read_record(directory) == a_record()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_record(tmp_path_factory.mktemp("whole"), a_record(), b"line\n" * 20)


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_is_noticed_or_changes_nothing(whole, tmp_path_factory, data):
    name, read = data.draw(
        st.sampled_from([("record.json", read_record), ("server.log.gz", read_log)]), label="file"
    )
    body = bytearray((whole / name).read_bytes())
    bit = data.draw(st.integers(0, 8 * len(body) - 1), label="bit")
    body[bit // 8] ^= 1 << bit % 8
    broken = tmp_path_factory.mktemp("broken")
    (broken / name).write_bytes(body)
    try:
        found = read(broken)
    except RecordError:
        return
    assert found == read(whole)


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(a_record().model_dump())) | st.tuples(st.just("point"), st.text(max_size=9)),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=9,
    ),
)
def test_any_values_are_a_record_or_an_error(tmp_path_factory, place, value):
    raw = a_record().model_dump(mode="json")
    if isinstance(place, tuple):
        raw["point"][place[1]] = value
    else:
        raw[place] = value
    directory = tmp_path_factory.mktemp("any")
    (directory / "record.json").write_text(json.dumps(raw), encoding="utf-8")
    try:
        assert isinstance(read_record(directory), Record)
    except RecordError as error:
        assert str(directory) in str(error)


def test_an_edited_point_is_noticed(tmp_path):
    directory = write_record(tmp_path, a_record())
    raw = orjson.loads((directory / "record.json").read_bytes())
    del raw[DIGEST]
    raw["point"]["context_tokens"] = 1024
    (directory / "record.json").write_bytes(orjson.dumps(raw))
    with pytest.raises(RecordError, match="it was edited"):
        read_record(directory)


def test_scratch_directories_of_a_killed_writer_are_skipped(tmp_path):
    write_record(tmp_path, a_record())
    (tmp_path / "points" / f".{POINT.key}.dead.tmp").mkdir()
    good, errors = read_all(tmp_path)
    assert len(good) == 1
    assert errors == []


def test_a_truncated_log_is_an_error_and_a_missing_one_is_empty(tmp_path):
    directory = write_record(tmp_path, a_record(), b"x" * 1000)
    path = directory / "server.log.gz"
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(RecordError, match="damaged"):
        read_log(directory)
    body = bytearray(gzip.compress(b"".join(str(i * i).encode() for i in range(999))))
    body[40:60] = b"\xff" * 20
    path.write_bytes(body)
    with pytest.raises(RecordError, match="damaged"):
        read_log(directory)
    path.unlink()
    assert read_log(directory) == b""


def test_log_bytes_are_reproducible(tmp_path):
    one = write_record(tmp_path / "a", a_record(), b"log") / "server.log.gz"
    two = write_record(tmp_path / "b", a_record(), b"log") / "server.log.gz"
    assert one.read_bytes() == two.read_bytes()
    assert gzip.decompress(one.read_bytes()) == b"log"
