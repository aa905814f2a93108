"""Lines of the decision and attention-mass probes become the entries that tables 11 and 12 read."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.extras import AttentionMass, DecisionProbe
from harness.errors import RecordError
from harness.measure import attention_mass, decision, probes
from harness.points import Point

POINT = Point(model="tiny", checkpoint="x", hardware="cpu", arm="native", depth=7, context_tokens=100,
              task="random", draft_backend="intel_amx", probe="decision")  # fmt: skip


def decided(
    position: int, margin: float, agrees: bool, wide: bool = True, overlap: float | None = None
) -> Any:
    one = {"margin": 1.0, "router_overlap": overlap}
    return {
        "monotonic_ns": 1, "batch": 1, "context_tokens": 100, "request": 0, "draft_position": position,
        "margin": margin, "control": {**one, "agrees": True},
        "windows": [
            {"window_tokens": 252, "sink_tokens": 4, "agrees": agrees, **one},
            {"window_tokens": 1020, "sink_tokens": 4, "agrees": wide, **one},
        ],
    }  # fmt: skip


def test_decisions_are_counted_by_window_and_place() -> None:
    lines = [
        decided(1, 3.0, True),
        decided(2, 0.3, False),
        decided(2, 5.0, True, wide=False),
        decided(3, 0.1, False),
    ]
    found = decision.summarise(lines, POINT)["decision_probe"]
    probe = DecisionProbe.model_validate(found)
    assert (probe.steps, probe.agreeing_steps, probe.control_agreeing_steps) == (4, 2, 4)
    assert (probe.window_tokens, probe.sink_tokens) == (252, 4)
    assert probe.margin_mean == pytest.approx(2.1)
    assert probe.margin_at_flip == pytest.approx(0.2)
    assert probe.router_jaccard is None
    assert [one.agreeing_steps for one in probe.windows] == [2, 3]
    assert probe.windows[1].margin_at_flip == 5.0
    assert [(one.position, one.steps, one.agreeing_steps) for one in probe.by_position] == [
        (1, 1, 1), (2, 2, 1), (3, 1, 0),
    ]  # fmt: skip
    edges = probe.margin_edges_logits
    assert sum(probe.margin_counts) == 4 and sum(probe.margin_counts_at_flip) == 2
    assert (
        probe.margin_counts_at_flip[edges.index(0.0)] == probe.margin_counts_at_flip[edges.index(0.25)] == 1
    )


def test_router_overlap_is_a_mean_where_there_are_routers() -> None:
    found = decision.summarise([decided(1, 1, True, overlap=0.5), decided(1, 1, True, overlap=1.0)], POINT)
    assert found["decision_probe"]["router_jaccard"] == 0.75
    assert found["decision_probe"]["margin_at_flip"] is None, "no flips"


def massed(
    layer: int, mass: float, tail: bool = True, difference: float | None = 0.001, bins: int = 3
) -> Any:
    window = {
        "window_tokens": 252, "sink_tokens": 4, "mass": mass, "perturbation": 0.2, "perturbation_joint": 0.1,
        "tail_share": 0.3, "tail_share_joint": 0.25, "tail_keys": 50 if tail else 0,
        "tail_entropy_nats": 2.0 if tail else None, "tail_participation_keys": 9.0 if tail else None,
    }  # fmt: skip
    return {
        "monotonic_ns": 1, "batch": 1, "context_tokens": 100, "request": 0, "draft_position": 2,
        "layer": layer, "residual_share": 0.5, "windows": [window], "sink_mass": 0.1,
        "distance_mass": [0.3] * bins, "kernel_difference": difference,
    }  # fmt: skip


def test_masses_are_means_over_steps_and_layers() -> None:
    lines = [massed(0, 0.8), massed(1, 0.6), massed(0, 1.0, tail=False, bins=2), massed(1, 0.6)]
    found = attention_mass.summarise(lines, POINT)["attention_mass"]
    mass = AttentionMass.model_validate(found)
    assert (mass.steps, mass.layers) == (2, 2)
    assert mass.in_window_mass == mass.windows[0].mass == pytest.approx(0.75)
    assert mass.windows[0].tail_keys == 37.5
    assert mass.windows[0].tail_entropy_nats == 2.0, "steps without a tail have none to speak of"
    assert mass.distance_mass == pytest.approx([0.3, 0.3, 0.225])
    assert mass.residual_share == 0.5


@pytest.mark.parametrize("summarise", [decision.summarise, attention_mass.summarise])
def test_a_probe_that_stopped_is_no_measurement(summarise: Any) -> None:
    with pytest.raises(RecordError, match="the server's probe stopped: ValueError: odd"):
        summarise([decided(1, 1, True), {"monotonic_ns": 2, "error": "ValueError: odd"}], POINT)


def test_a_read_out_that_is_not_the_kernels_is_no_measurement() -> None:
    with pytest.raises(RecordError, match=r"differs from the attention kernel's by 50%"):
        attention_mass.summarise([massed(0, 0.5, difference=0.5)], POINT)


def traced(step: int) -> Any:
    return {
        "monotonic_ns": step, "step": step, "since_previous_ns": 100, "worker_ns": 80, "batch": 1,
        "source": "host", "accepted": [2], "context_tokens": 50,
        "parts_ns": {"verify_forward": 40, "draft": 30},
    }  # fmt: skip


RUNS: dict[str, list[Any]] = {
    "decision": [decided(1, 3.0, True), decided(2, 0.3, False), decided(1, 3.0, True, overlap=0.5)],
    "attention_mass": [massed(0, 0.8), massed(1, 0.6)],
    "trace": [traced(step) for step in range(9)],
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.just(1 << 63)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a line can be damaged: every key and every place of a list, inner ones too."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in inner for path in [(*at, key), *places(one, (*at, key))]]


@settings(max_examples=300)
@given(st.sampled_from(sorted(RUNS)), st.data())
def test_a_damaged_line_is_no_measurement_or_a_storable_one(kind: str, data: Any) -> None:
    lines = copy.deepcopy(RUNS[kind])
    line = data.draw(st.sampled_from(lines))
    *above, last = data.draw(st.sampled_from(places(line)))
    for key in above:
        line = line[key]
    if isinstance(line, dict) and data.draw(st.booleans(), label="missing"):
        del line[last]
    else:
        line[last] = data.draw(VALUES)
    try:
        found = probes.summary(kind, lines, POINT)
    except RecordError:
        return
    assert orjson.loads(orjson.dumps(found)).keys() == found.keys()
