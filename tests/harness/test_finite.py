"""Weights and replies that are no numbers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import ServerError
from harness.measure import protocol
from harness.models.checkpoint import open_checkpoint, preflight
from harness.models.finite import without_numbers
from harness.records import Outcome

TINY = Path("harness/engine/tiny/checkpoint")
NAN, ONE = {"BF16": b"\xc0\x7f", "F16": b"\x00\x7e", "F32": b"\x00\x00\xc0\x7f"}, b"\x80\x3f"


def write(path: Path, tensors: dict[str, tuple[str, bytes]]) -> Path:
    entries, data = {}, b""
    for name, (dtype, body) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": [len(body)], "data_offsets": [len(data), len(data + body)]}
        data += body
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


@pytest.mark.parametrize("dtype", sorted(NAN))
def test_a_tensor_of_nothing_but_nan_is_found(tmp_path, dtype):
    path = write(tmp_path / "m.safetensors", {"a.weight": (dtype, NAN[dtype] * 3000)})
    assert without_numbers([path], ["a.weight"]) == ["a.weight"]


@pytest.mark.parametrize(
    ("name", "dtype", "body"),
    [
        ("a.weight", "BF16", ONE * 10),
        ("a.weight", "BF16", NAN["BF16"] * 9 + ONE),  # odd values alone condemn nothing
        ("a.weight", "BF16", b""),
        ("a.input_scale", "F32", NAN["F32"]),  # of an expert that calibration never reached
        ("a.weight", "U8", b"\xff" * 10),
    ],
)
def test_others_are_left_alone(tmp_path, name, dtype, body):
    assert without_numbers([write(tmp_path / "m.safetensors", {name: (dtype, body)})], [name]) == []


@pytest.mark.parametrize(
    ("damaged", "refused"),
    [
        ("mtp.", {True: ["weights_not_finite"], False: []}),
        ("model.layers.2.mlp", {True: ["weights_not_finite"], False: ["weights_not_finite"]}),
    ],
)
def test_a_damaged_head_rules_out_the_arms_that_draft(tmp_path, damaged, refused):
    for path in TINY.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "model.safetensors"
    body = bytearray(path.read_bytes())
    size = struct.unpack("<Q", body[:8])[0]
    for name, entry in json.loads(body[8 : 8 + size]).items():
        if name.startswith(damaged):
            begin, end = entry["data_offsets"]
            body[8 + size + begin : 8 + size + end] = NAN["BF16"] * ((end - begin) // 2)
    path.write_bytes(body)
    checkpoint = open_checkpoint(str(tmp_path))
    for speculative, names in refused.items():
        found = preflight(checkpoint, speculative=speculative)
        assert [problem.name for problem in found] == names
        assert all(problem.outcome is Outcome.INVALID and damaged in problem.message for problem in found)


@pytest.mark.parametrize(
    ("rows", "bad"),
    [
        ([[-0.5, 7, None]], False),
        ([[-0.5, 7, None], [None, 0, None]], True),
        ([[float("nan"), 0, None]], True),
        ([[float("-inf"), 0, None]], True),
        (None, False),
    ],
)
def test_a_model_of_nan_is_found_at_the_warm_up(monkeypatch, rows, bad):
    asked = []

    def request(server, prompts, sampling, stall_limit_s, options=None):
        asked.append(options)
        return [{"output_ids": [7], "meta_info": {"output_token_logprobs": rows if options else None}}]

    monkeypatch.setattr(protocol, "request", request)
    server = SimpleNamespace(client=SimpleNamespace(flush_cache=lambda: None))
    if bad:
        with pytest.raises(ServerError, match="no numbers") as found:
            protocol.warm_up(server, range(64), 2)
        assert found.value.kind == Outcome.INVALID
    else:
        protocol.warm_up(server, range(64), 2)
        assert len(asked) == 2


def test_a_server_without_log_probabilities_is_measured(monkeypatch):
    def request(server, prompts, sampling, stall_limit_s, options=None):
        if options:
            raise ServerError("unsupported", "request_error")
        return []

    monkeypatch.setattr(protocol, "request", request)
    protocol.warm_up(SimpleNamespace(client=SimpleNamespace(flush_cache=lambda: None)), range(64), 1)
