"""Probes inside real servers: right on drafts whose answer is known, and without effect on the run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness.engine.tiny.looking_back import OUTSIDE_PLACES, READ_GAIN
from tests.engine.probes.servers import NARROW, WIDE, Probed, ask

pytestmark = [pytest.mark.server, pytest.mark.slow]


def check_lines(found: Probed, requests: int = 1) -> None:
    assert {line.get("error") for line in found.lines} == {None}
    assert {line["draft_position"] for line in found.lines} == {1, 2, 3, 4, 5, 6}
    assert {line["batch"] for line in found.lines} == set(range(1, requests + 1))


def test_mass_of_a_draft_that_looks_outside_the_window(tmp_path: Path) -> None:
    found = ask(tmp_path, "attention_mass", "outside_mtp")
    check_lines(found)
    assert max(found.of_window(NARROW, "mass")) < 0.01
    assert min(found.of_window(NARROW, "tail_share")) > 0.99
    assert min(found.of_window(NARROW, "perturbation")) > 0.5
    assert max(found.of_window(NARROW, "tail_participation_keys")) < 1.1
    assert min(found.of_window(WIDE, "mass")) > 0.99
    assert max(found.of_window(WIDE, "perturbation")) < 0.01
    place = OUTSIDE_PLACES.bit_length()  # bin i holds distances 2^(i-1) .. 2^i - 1
    assert min(line["distance_mass"][place] for line in found.lines) > 0.99
    assert max(line["kernel_difference"] for line in found.lines) < 0.01
    for line in found.lines:
        assert line["residual_share"] == pytest.approx(READ_GAIN, rel=0.03)


def test_decisions_of_a_draft_that_looks_outside_the_window(tmp_path: Path) -> None:
    found = ask(tmp_path, "decision", "outside_mtp")
    check_lines(found)
    assert all(line["control"]["agrees"] for line in found.lines)
    assert all(found.of_window(WIDE, "agrees"))
    narrow = found.of_window(NARROW, "agrees")
    assert sum(narrow) <= 0.1 * len(narrow)


def test_probes_of_a_draft_that_looks_inside_the_window(tmp_path: Path) -> None:
    for kind in ("attention_mass", "decision"):
        (tmp_path / kind).mkdir()
    mass = ask(tmp_path / "attention_mass", "attention_mass", "inside_mtp", windows=(NARROW, (60, 4)))
    check_lines(mass)
    for window in (NARROW, (60, 4)):
        assert min(mass.of_window(window, "mass")) > 0.99
        assert max(mass.of_window(window, "perturbation")) < 0.01
    decision = ask(tmp_path / "decision", "decision", "inside_mtp", windows=(NARROW, (60, 4), (8, 2)))
    check_lines(decision)
    assert all(decision.of_window(NARROW, "agrees")) and all(decision.of_window((60, 4), "agrees"))
    assert not all(decision.of_window((8, 2), "agrees")), "20 places back is outside of 8"


def test_mass_of_a_draft_that_attends_evenly(tmp_path: Path) -> None:
    found = ask(tmp_path, "attention_mass", "flat_mtp", together=True)
    check_lines(found, requests=2)
    decoded = [line for line in found.lines if line["draft_position"] > 1 and line["batch"] == 1]
    assert decoded
    for line in decoded:
        own = line["draft_position"] - 1
        keys = line["context_tokens"] + own
        for one in line["windows"]:
            kept = one["window_tokens"] + one["sink_tokens"] + own
            assert one["mass"] == pytest.approx(kept / keys, rel=1e-3)
            assert one["tail_keys"] == keys - kept
            assert one["tail_participation_keys"] == pytest.approx(keys - kept, rel=1e-3)
            assert one["tail_entropy_nats"] == pytest.approx(math.log(keys - kept), rel=1e-4)


def test_probes_do_not_change_the_run(tmp_path: Path) -> None:
    found = {}
    for kind in (None, "decision", "attention_mass"):
        folder = tmp_path / str(kind)
        folder.mkdir()
        found[kind] = ask(folder, kind, new_tokens=96)
    assert sum(sum(histogram[1:]) for _, histogram in found[None].told) > 0, "no draft was ever accepted"
    assert found["decision"].told == found["attention_mass"].told == found[None].told
    for kind in ("decision", "attention_mass"):
        check_lines(found[kind])


def test_experts_of_a_mixture(tmp_path: Path) -> None:
    """A window that holds the context changes no router's mind; a narrow one may."""
    found = ask(tmp_path, "decision", "moe_float32", windows=(NARROW, (2000, 4)))
    check_lines(found)
    assert all(found.of_window((2000, 4), "agrees"))
    assert set(found.of_window((2000, 4), "router_overlap")) == {1.0}
    narrow = found.of_window(NARROW, "router_overlap")
    assert all(0 <= value <= 1 for value in narrow) and min(narrow) < 1
