"""The trace's hooks around a stand-in for SGLang's worker, on a clock that only the test moves."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from harness.engine.probes import trace
from harness.engine.probes.marks import Recorder
from harness.engine.probes.settings import ProbeSettings
from harness.phases import DRAFT, OVERHEAD, UNATTRIBUTED, VERIFY, phase_of


class Clock:
    source = "fake"
    now = 0

    def start(self):
        pass

    def mark(self):
        return self.now

    def ready(self, mark):
        return True

    def between_ns(self, first, second):
        return second - first


class Registry:
    """Collects hooks, and calls a stand-in through the one of its target."""

    def __init__(self):
        self.hooks = {}

    def register(self, target, hook, kind):
        assert target not in self.hooks
        self.hooks[target] = hook

    def around(self, target, original):
        return lambda *args, **kwargs: self.hooks[target](original, *args, **kwargs)


def mode(extend=False, idle=False):
    return SimpleNamespace(is_extend=lambda: extend, is_idle=lambda: idle)


def batch(extend=False):
    return SimpleNamespace(
        forward_mode=mode(extend),
        is_extend_in_batch=extend,
        seq_lens=[5, 9],
        seq_lens_cpu=torch.tensor([5, 9]),
    )


@pytest.fixture
def hooked(monkeypatch, tmp_path):
    """Hooks, registry, clock and written lines."""
    monkeypatch.setattr(trace.compat, "require_signatures", lambda expected: None)
    hooks, registry, clock, lines = (
        trace.TraceHooks(ProbeSettings("trace", str(tmp_path))),
        Registry(),
        Clock(),
        [],
    )
    hooks.register(registry, SimpleNamespace(AROUND="around", AFTER="after"))
    hooks.recorder = Recorder(clock, lines.append, lambda name: None)
    return SimpleNamespace(hooks=hooks, registry=registry, clock=clock, lines=lines)


def stand_in(hooked, forwards=3):
    """A worker's step with SGLang's nesting; each piece takes a power of ten that names it."""
    clock, registry = hooked.clock, hooked.registry

    def takes(ns):
        def run(*args, **kwargs):
            clock.now += ns

        return run

    draft_runner, target_runner = (
        SimpleNamespace(is_draft_worker=True),
        SimpleNamespace(is_draft_worker=False),
    )
    forward = registry.around(trace._FORWARD, takes(0))
    costs = {"draft_index": 10, "draft_extend_index": 20, "verify_index": 40}
    backends = {name: SimpleNamespace(init_forward_metadata=takes(ns)) for name, ns in costs.items()}
    for name, backend in backends.items():
        hooked.hooks.mark_index_builds(backend, name)

    def part(target, inside):
        return registry.around(target, inside)

    def draft(*args):
        part(trace._COMMON + "prepare_for_draft", takes(1))()
        backends["draft_index"].init_forward_metadata()
        for _ in range(forwards):
            registry.around(trace._FORWARD, takes(100))(draft_runner)
        part(trace._COMMON + "build_eagle_verify_input", takes(1_000))()
        clock.now += 2

    def verify(*args):
        part(trace._SPECULATIVE + "eagle_utils.eagle_prepare_for_verify", takes(2_000))()

        def target_forward(runner):
            backends["verify_index"].init_forward_metadata()
            clock.now += 10_000

        registry.around(trace._FORWARD, target_forward)(target_runner)
        part(trace._SPECULATIVE + "eagle_utils.eagle_sample", takes(4_000))()
        clock.now += 8_000

    def extend(*args):
        part(
            trace._COMMON + "prepare_for_draft_extend", backends["draft_extend_index"].init_forward_metadata
        )()
        registry.around(trace._FORWARD, takes(300))(draft_runner)
        clock.now += 4

    def step(worker, batch):
        if batch.is_extend_in_batch:
            forward(target_runner)
            clock.now += 50
            return SimpleNamespace(accept_lens=None)
        clock.now += 5
        part(trace._DRAFT + "draft", draft)()
        part(trace._WORKER + "verify", verify)()
        part(trace._DRAFT + "_draft_extend_for_decode", extend)()
        return SimpleNamespace(accept_lens=torch.tensor([3, 1]))

    return registry.around(trace._STEP, step)


def test_every_piece_lands_in_its_part_and_phase(hooked):
    stand_in(hooked)(None, batch())
    (line,) = hooked.lines
    assert line["parts_ns"] == {
        "unattributed": 5,
        "draft_prepare": 1, "draft_index": 10, "draft_forward.0": 100, "draft_forward.1": 100,
        "draft_forward.2": 100, "draft": 2, "tree_build": 1_000,
        "verify_prepare": 2_000, "verify_index": 40, "verify_forward": 10_000, "sampling": 4_000,
        "verify_commit": 8_000,
        "draft_extend_prepare": 0, "draft_extend_index": 20, "draft_extend_forward": 300, "draft_extend": 4,
    }  # fmt: skip
    phases: dict[str, int] = {}
    for name, ns in line["parts_ns"].items():
        phases[phase_of(name)] = phases.get(phase_of(name), 0) + ns
    assert phases == {VERIFY: 10_000, OVERHEAD: 15_040, DRAFT: 637, UNATTRIBUTED: 5}
    assert sum(phases.values()) == line["worker_ns"]


def test_a_line_says_batch_context_and_accepted_drafts(hooked):
    stand_in(hooked)(None, batch())
    (line,) = hooked.lines
    assert (line["batch"], line["context_tokens"], line["accepted"], line["step"]) == (2, 9, [2, 0], 1)


def test_prefill_is_no_iteration_and_breaks_the_chain(hooked):
    step = stand_in(hooked)
    for one in (batch(), batch(), batch(extend=True), batch()):
        step(None, one)
    assert [line["step"] for line in hooked.lines] == [1, 2, 4]
    assert [line["since_previous_ns"] is None for line in hooked.lines] == [True, False, True]


def test_all_forwards_in_one_graph_are_one_mark(hooked):
    hooked.hooks.recorder.begin(step=1)
    replay = hooked.registry.around(trace._DRAFT_GRAPH, lambda: setattr(hooked.clock, "now", 70))
    hooked.registry.around(trace._DRAFT + "draft", replay)()
    hooked.hooks.recorder.end()
    assert hooked.lines[0]["parts_ns"] == {"unattributed": 0, "draft": 0, "draft_forward.0": 70}


def test_a_failing_step_is_no_line_and_the_error_goes_on(hooked):
    def fails(worker, batch):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        hooked.registry.around(trace._STEP, fails)(None, batch())
    stand_in(hooked)(None, batch())
    assert [line["step"] for line in hooked.lines] == [2]


def test_torch_ranges_are_made_only_while_its_profiler_runs():
    open_range = trace.profiler_ranges(nvtx=False)
    assert open_range("draft") is None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        close = open_range("draft")
        torch.ones(3).sum()
        close()
    assert "wmtp.draft" in {event.key for event in profile.key_averages()}


def test_nvtx_ranges_are_made_where_nsys_is_to_see_them(monkeypatch):
    calls = []
    library = SimpleNamespace(push_range=calls.append, pop_range=lambda: calls.append("pop"))
    monkeypatch.setitem(sys.modules, "nvtx", library)
    open_range = trace.profiler_ranges(nvtx=True)
    outer = open_range("iteration")
    open_range("draft")()
    outer()
    assert calls == ["wmtp.iteration", "wmtp.draft", "pop", "pop"]


def test_the_installed_nvtx_has_what_the_ranges_need():
    close = trace.profiler_ranges(nvtx=True)("iteration")
    close()


def test_device_marks_are_events_of_the_iterations_stream(monkeypatch):
    recorded = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.at_ms = float(len(recorded)) * 1.5

        def record(self, stream):
            recorded.append(stream)

        def query(self):
            return len(recorded) > 1

        def elapsed_time(self, other):
            return other.at_ms - self.at_ms

    streams = iter(["forward stream", "plan stream"])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: next(streams))
    clock = trace.DeviceClock()
    clock.start()
    first = clock.mark()
    assert not clock.ready(first)
    second = clock.mark()
    assert clock.ready(second)
    assert clock.between_ns(first, second) == 1_500_000
    assert recorded == ["forward stream"] * 2
