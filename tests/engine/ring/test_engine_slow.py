"""The longer checks on a real engine: chunk sizes, schedules, retraction, trees, a dense model, Triton."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from harness.engine.settings import EngineSettings
from tests.engine.ring.dense_model import random_prompt, write_dense_model
from tests.engine.ring.engines import Arm, Round, prompt, refusal, run

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1800)]

DEPTH, WINDOW, SINK = 5, 24, 4
NATIVE = EngineSettings(draft_tokens=DEPTH)
WINDOWED = EngineSettings("windowed", WINDOW, SINK, DEPTH)
RING = EngineSettings("ring", WINDOW, SINK, DEPTH)
UNPRUNED = EngineSettings("ring", WINDOW, SINK, DEPTH, prune_prefill=False)
MIXED = [
    Round([prompt(10, 1)], [24]),
    Round([prompt(300, 2), prompt(33, 3), prompt(150, 4), prompt(777, 5)], [40, 30, 50, 30]),
]


@pytest.fixture(scope="module")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dense_model(tmp_path_factory.mktemp("dense"))


def test_chunk_size_and_pruning_change_nothing(tmp_path: Path) -> None:
    """The draft's first token sees the sink and the last W keys, however the prompt was cut."""
    outcomes = {}
    for name, settings in {"pruned": RING, "unpruned": UNPRUNED}.items():
        # 777 = 3 * 250 + 27: a last chunk between the window and the window with the sink.
        for chunk in (16, 250, 2048):
            arm = Arm(settings, engine={"chunked_prefill_size": chunk})
            outcomes[name, chunk] = run(arm, MIXED, tmp_path / f"{name}-{chunk}")
    first, *others = outcomes.values()
    for other in others:
        assert other.values("ids") == first.values("ids")
        assert other.values("histogram") == first.values("histogram")


def test_a_dense_models_draft_reads_the_right_keys(dense_model: Path, tmp_path: Path) -> None:
    """Its draft is as good as its reads: nearly always right natively, and with a window that holds all."""
    rounds = [
        Round([random_prompt(10, 1)], [40]),
        Round([random_prompt(n, n) for n in (300, 60, 130, 33)], [50, 40, 30, 60]),
    ]
    arms = {
        "dense": None,
        "native": NATIVE,
        "windowed": WINDOWED,
        "ring": RING,
        "wide": EngineSettings("ring", 360, SINK, DEPTH),
    }
    outcomes = {
        name: run(
            Arm(settings, model=dense_model, engine={"chunked_prefill_size": 48}), rounds, tmp_path / name
        )
        for name, settings in arms.items()
    }
    for outcome in outcomes.values():
        assert outcome.values("ids") == outcomes["dense"].values("ids")
    assert outcomes["native"].accept_length > 3
    assert outcomes["windowed"].accept_length < 2
    assert outcomes["ring"].values("histogram") == outcomes["windowed"].values("histogram")
    assert outcomes["wide"].values("histogram") == outcomes["native"].values("histogram")


def random_rounds(seed: int, requests: int) -> list[Round]:
    """Random prompts and outputs in flight together, some of them aborted."""
    rng = random.Random(seed)
    rounds = []
    while requests > 0:
        count = min(requests, rng.randint(5, 40))
        prompts = [random_prompt(rng.randint(1, 220), rng.randint(0, 10**6)) for _ in range(count)]
        aborted = tuple(rng.sample(range(count), count // 10))
        rounds.append(
            Round(prompts, [rng.randint(1, 40) for _ in range(count)], aborted, rng.uniform(0.1, 2))
        )
        requests -= count
    return rounds


def test_two_hundred_random_requests(dense_model: Path, tmp_path: Path) -> None:
    rounds = random_rounds(7, 200)
    engine = {"chunked_prefill_size": 64}
    windowed = run(Arm(WINDOWED, model=dense_model, engine=engine), rounds, tmp_path / "windowed", 900)
    ring = run(Arm(RING, model=dense_model, engine=engine), rounds, tmp_path / "ring", 900)
    compared = 0
    for one, other in zip(windowed.replies, ring.replies, strict=True):
        if "abort" in (one["finish"], other["finish"]):
            continue
        compared += 1
        assert one["ids"] == other["ids"]
        assert one["histogram"] == other["histogram"]
    assert compared >= 170


@pytest.mark.parametrize("settings", [RING, UNPRUNED], ids=["pruned", "unpruned"])
def test_retracted_requests_draft_on_as_before(
    dense_model: Path, tmp_path: Path, settings: EngineSettings
) -> None:
    rounds = [Round([random_prompt(40 + 30 * i, i) for i in range(4)], [120, 100, 110, 90])]
    outcomes: dict[str, Any] = {}
    for name, arm_settings in {"dense": None, "windowed": WINDOWED, "ring": settings}.items():
        retract = {} if arm_settings is None else {"SGLANG_TEST_RETRACT": "1"}
        arm = Arm(arm_settings, model=dense_model, environment=retract, engine={"chunked_prefill_size": 64})
        outcomes[name] = run(arm, rounds, tmp_path / name)
    assert sum(outcomes["ring"].values("retractions")) > 0
    for name in ("windowed", "ring"):
        assert outcomes[name].values("ids") == outcomes["dense"].values("ids")
    assert outcomes["ring"].values("histogram") == outcomes["windowed"].values("histogram")


def test_trees_of_width_three(dense_model: Path, tmp_path: Path) -> None:
    engine = {"chunked_prefill_size": 48, "speculative_num_steps": 3}
    rounds = [Round([random_prompt(n, n) for n in (130, 60, 333, 10)], [40, 30, 30, 40])]
    settings = {
        "dense": None,
        "native": EngineSettings(draft_tokens=8, topk=3),
        "windowed": EngineSettings("windowed", WINDOW, SINK, 8, topk=3),
        "ring": EngineSettings("ring", WINDOW, SINK, 8, topk=3),
        "wide": EngineSettings("ring", 400, SINK, 8, topk=3),
    }
    outcomes = {
        name: run(
            Arm(value, model=dense_model, engine=engine if value else {"chunked_prefill_size": 48}),
            rounds,
            tmp_path / name,
        )
        for name, value in settings.items()
    }
    for outcome in outcomes.values():
        assert outcome.values("ids") == outcomes["dense"].values("ids")
    assert outcomes["ring"].values("histogram") == outcomes["windowed"].values("histogram")
    assert outcomes["wide"].values("histogram") == outcomes["native"].values("histogram")
    assert outcomes["ring"].facts["slots_per_row"] == str(SINK + WINDOW + 8 * 3)


def with_plugins(arm: Arm, folder: Path, *names: str) -> Arm:
    """The arm, its engine loading plugins of this folder after ours; `folder` becomes their package."""
    folder.mkdir(parents=True)
    information = folder / "test_plugins-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: test-plugins\nVersion: 0\n")
    points = "".join(f"{name} = {name}:activate\n" for name in names)
    (information / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{points}")
    for name in names:
        (folder / f"{name}.py").write_bytes(Path(__file__).with_name(f"{name}.py").read_bytes())
    path = arm.process_environment()["PYTHONPATH"]
    arm.environment |= {
        "PYTHONPATH": f"{path}:{folder}",
        "SGLANG_PLUGINS": ",".join(["windowed_mtp", *names]),
    }
    return arm


def test_triton_interpreted_equals_the_cpu_backend(dense_model: Path, tmp_path: Path) -> None:
    """Triton's kernels on the CPU, eager, and planned as a CUDA graph would; windowed, pruned and not."""
    rounds = [
        Round([random_prompt(10, 1)], [12]),
        Round([random_prompt(130, 4), random_prompt(60, 5)], [16, 12]),
    ]
    engine = {"chunked_prefill_size": 48}
    wanted = run(Arm(RING, model=dense_model, engine=engine), rounds, tmp_path / "cpu")
    for name, settings, planned in (
        ("windowed", WINDOWED, False),
        ("unpruned", UNPRUNED, False),
        ("graph", RING, True),
    ):
        arm = Arm(settings, backend="triton", model=dense_model, engine=engine)
        if planned:
            arm = with_plugins(arm, tmp_path / "probe", "graph_probe")
        outcome = run(arm, rounds, tmp_path / name, 900)
        assert outcome.values("ids") == wanted.values("ids")
        assert outcome.values("histogram") == wanted.values("histogram")
        if planned:
            assert "graph-probe: decode planned" in outcome.log
            assert "graph-probe: draft extend planned" in outcome.log


def flashinfer_arm(settings: EngineSettings, model: Path, engine: dict[str, Any], folder: Path) -> Arm:
    """An engine whose draft runs on FlashInfer's backend, its wrappers replaced by stand-ins."""
    arm = Arm(settings, draft_backend="flashinfer", model=model, engine=engine)
    return with_plugins(arm, folder, "flashinfer_standin")


def test_flashinfer_on_stand_ins_equals_the_cpu_backend(dense_model: Path, tmp_path: Path) -> None:
    """SGLang's planning and index kernels, eager and as CUDA graphs would plan; windowed, pruned and not."""
    rounds = [
        Round([random_prompt(10, 1)], [12]),
        Round([random_prompt(130, 4), random_prompt(60, 5)], [16, 12]),
    ]
    engine = {"chunked_prefill_size": 48}
    native = run(Arm(NATIVE, model=dense_model, engine=engine), rounds, tmp_path / "native")
    wanted = run(Arm(RING, model=dense_model, engine=engine), rounds, tmp_path / "cpu")
    plugins = ("flashinfer_standin", "flashinfer_graph_probe")
    planned = Arm(RING, draft_backend="flashinfer", model=dense_model, engine=engine)
    arms = {
        "windowed": flashinfer_arm(WINDOWED, dense_model, engine, tmp_path / "windowed-plugins"),
        "unpruned": flashinfer_arm(UNPRUNED, dense_model, engine, tmp_path / "unpruned-plugins"),
        "graph": with_plugins(planned, tmp_path / "graph-plugins", *plugins),
    }
    for name, arm in arms.items():
        outcome = run(arm, rounds, tmp_path / name, 900)
        assert outcome.values("ids") == native.values("ids")
        assert outcome.values("histogram") == wanted.values("histogram")
        if name == "graph":
            assert "flashinfer-graph-probe: decode planned" in outcome.log
            assert "flashinfer-graph-probe: draft extend planned" in outcome.log


def test_flashinfer_on_stand_ins_drafts_trees(dense_model: Path, tmp_path: Path) -> None:
    engine = {"chunked_prefill_size": 48, "speculative_num_steps": 3}
    rounds = [Round([random_prompt(130, 4), random_prompt(60, 5)], [16, 12])]
    tree = EngineSettings("ring", WINDOW, SINK, 8, topk=3)
    wanted = run(Arm(tree, model=dense_model, engine=engine), rounds, tmp_path / "cpu")
    found = run(
        flashinfer_arm(tree, dense_model, engine, tmp_path / "plugins"), rounds, tmp_path / "tree", 900
    )
    assert found.values("ids") == wanted.values("ids")
    assert found.values("histogram") == wanted.values("histogram")


def test_upstreams_own_flags_are_the_decode_window(dense_model: Path, tmp_path: Path) -> None:
    """Upstream windows the decode reads alone; with window_extend off, ours must be the same."""
    rounds = [Round([random_prompt(130, 4), random_prompt(60, 5)], [16, 12])]
    engine = {"chunked_prefill_size": 48}
    flags = {"speculative_draft_window_size": WINDOW, "speculative_draft_sink_size": SINK}
    upstream = Arm(NATIVE, backend="triton", model=dense_model, engine=engine | flags)
    decode_only = EngineSettings("windowed", WINDOW, SINK, DEPTH, prune_prefill=False, window_extend=False)
    ours = Arm(decode_only, backend="triton", model=dense_model, engine=engine)
    one = run(upstream, rounds, tmp_path / "upstream", 900)
    other = run(ours, rounds, tmp_path / "ours", 900)
    assert one.values("ids") == other.values("ids")
    assert one.values("histogram") == other.values("histogram")


def free_memory_gb(log: str) -> float:
    """What SGLang found free once the weights were loaded."""
    found = re.search(r"Load weight end\..* avail mem=([\d.]+) GB", log)
    assert found is not None
    return float(found[1])


def test_the_freed_memory_goes_to_the_target(dense_model: Path, tmp_path: Path) -> None:
    """Without a token cap: the profile gives the ring's target the draft's share (here one layer of two)."""
    engine = {"max_total_tokens": None, "mem_fraction_static": 0.08, "chunked_prefill_size": 64}
    rounds = [Round([random_prompt(20, 1)], [4])]
    native = run(Arm(NATIVE, model=dense_model, engine=engine), rounds, tmp_path / "native")
    ring = run(Arm(RING, model=dense_model, engine=engine), rounds, tmp_path / "ring")
    facts = {name: int(value) for name, value in ring.facts.items() if value.isdigit()}
    slot_bytes = facts["draft_pool_bytes"] // (facts["draft_slots"] + 1)
    assert facts["draft_slots"] == facts["rows"] * (SINK + WINDOW + DEPTH)
    memory = facts["target_tokens"] * slot_bytes + facts["draft_pool_bytes"]
    assert facts["target_tokens_without_ring"] == pytest.approx(memory // (2 * slot_bytes), abs=2)
    assert ring.pool_tokens == [facts["target_tokens"], facts["draft_slots"]]
    assert facts["target_tokens"] / facts["target_tokens_without_ring"] == pytest.approx(2.0, rel=0.01)
    # A share of the free memory, which differs between two starts on a shared machine and drifts during each.
    shares = [found.pool_tokens[0] / free_memory_gb(found.log) for found in (ring, native)]
    assert shares[0] / shares[1] == pytest.approx(2.0, rel=0.25)


def test_radix_cache_without_pruning_keeps_shared_prefixes_correct(dense_model: Path, tmp_path: Path) -> None:
    shared = random_prompt(200, 1)
    rounds = [Round([shared], [20]), Round([shared + random_prompt(40, 2)], [30])]
    settings = EngineSettings("windowed", WINDOW, SINK, DEPTH, prune_prefill=False)
    cached = run(
        Arm(settings, model=dense_model, engine={"disable_radix_cache": False}), rounds, tmp_path / "radix"
    )
    fresh = run(Arm(settings, model=dense_model), rounds, tmp_path / "fresh")
    assert cached.values("cached_tokens")[1] > 100
    assert cached.values("ids") == fresh.values("ids")
    assert cached.values("histogram") == fresh.values("histogram")


def test_a_page_size_above_one_is_refused(dense_model: Path, tmp_path: Path) -> None:
    log = refusal(Arm(RING, model=dense_model, engine={"page_size": 16}), tmp_path)
    assert "use --page-size 1" in log
