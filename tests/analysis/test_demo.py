"""What the demo prints and the one-line summaries."""

from __future__ import annotations

from pathlib import Path

from factory import make_record
from rich.console import Console

from analysis import demo
from analysis.summary import summary_line
from harness.records import Outcome, Record


def shown(records: list[Record], folder: Path) -> str:
    console = Console(width=170, record=True, quiet=True)
    console.quiet = False
    with console.capture() as capture:
        demo.show(records, folder, console)
    return capture.get()


def same_output(record: Record) -> Record:
    """81 tokens, by one accepted draft a step where the arm drafts."""
    steps, (request,) = record.decode_steps, record.requests
    if record.point.arm != "dense":
        told = zip(steps.throughput_tokens_per_s, steps.accept_length, strict=True)
        steps.throughput_tokens_per_s = [2 * rate / (length or 1) for rate, length in told]
        steps.accept_length = [2.0] * 40
        steps.resident_tokens = [record.point.context_tokens + 2 * i for i in range(39)] + [0]
        request.correct_drafts, request.accept_histogram = 40, [0, 40, 0, 0, 0, 0, 0]
    request.completion_tokens, request.output_ids = 81, list(range(81))
    return record


def test_demo_shows_every_arm_and_context(tmp_path: Path) -> None:
    records = [
        same_output(
            make_record(
                arm,
                seed=seed,
                context_tokens=context,
                step_ms=20 if arm == "ring" else 30,
                steps=80 if arm == "dense" else 40,
            )
        )
        for arm in ("dense", "native", "windowed", "ring")
        for context in (8192, 32768)
        for seed in range(3)
    ]
    text = shown(records, tmp_path)
    assert text.count("Table 2 on tiny / cpu") == 2 and "S = 8,192" in text and "S = 32,768" in text
    assert "1.50 [" in text, "30 ms against 20 ms"
    assert text.count("identical in dense, native, windowed, ring") == 6
    assert {p.name for p in tmp_path.iterdir()} >= {"figure_2.png", "figure_step.svg"}


def test_demo_says_what_it_left_out(tmp_path: Path) -> None:
    records = [
        same_output(make_record("native", steps=40)),
        same_output(make_record("ring", steps=40)),
        make_record("windowed", outcome=Outcome.SERVER_DIED, reason="killed by the system"),
    ]
    records[1].requests[0].output_ids[12] = 99
    text = shown(records, tmp_path)
    assert "killed by the system" in text
    assert "ring differs from native at token 12" in text


def test_demo_pairs_no_arms_of_other_prompts(tmp_path: Path) -> None:
    records = [make_record("native"), make_record("ring")]
    assert records[1].input is not None
    records[1].input = records[1].input.model_copy(update={"sha256_ids": "0123456789abcdef" * 4})
    text = shown(records, tmp_path)
    assert "left out" in text and "its prompt is another one" in text and "outputs, S" not in text


def test_demo_without_a_measurement_draws_nothing(tmp_path: Path) -> None:
    assert "left out" in shown([make_record(steps=3)], tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_summary_line() -> None:
    line = summary_line(make_record("ring", request={"output_ids": [4] * 90, "scores": {"strict": 0.5}}))
    assert (
        "step 19.98 [" in line
        and "steady steps" in line
        and "repeats itself" in line
        and "50% of the expected answers found (strict score)" in line
    )
    assert summary_line(make_record(steps=3)).endswith("too few decode steps for a steady state")
    assert "out_of_memory_at_start - full" in summary_line(
        make_record(outcome=Outcome.OUT_OF_MEMORY_AT_START, reason="full")
    )


def test_a_dead_draft_is_said_at_the_end_of_a_run() -> None:
    dead = make_record("native", request={"correct_drafts": 0, "verify_steps": 50, "accept_histogram": None})
    assert "no measurement: " in summary_line(dead) and "may be untrained" in summary_line(dead)
    assert "no measurement" not in summary_line(make_record("native"))
