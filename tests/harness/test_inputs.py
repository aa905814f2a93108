"""What points take from the generators."""

from __future__ import annotations

import platform

from harness.engine.tiny import checkpoint_path
from harness.measure.inputs import InputStore
from harness.points import Point


def point(task: str) -> Point:
    return Point(
        model="tiny", checkpoint="c", hardware="cpu", arm="dense", depth=1, context_tokens=256, task=task,
        draft_backend="-",
    )  # fmt: skip


def test_a_record_names_the_library_that_its_prompt_was_taken_from() -> None:
    inputs = InputStore(checkpoint_path())
    code = point("code_repository").model_copy(update={"context_tokens": 2048})
    assert inputs.info(code).source == f"standard library of Python {platform.python_version()}"
    assert inputs.info(point("niah_single")).source == "generated"


def test_a_task_without_right_answers_has_no_scores() -> None:
    """Not a NaN, which JSON cannot hold: the record would be lost."""
    inputs = InputStore(checkpoint_path())
    assert inputs.scores(point("random"), "anything") == {}
    assert set(inputs.scores(point("niah_single"), "anything")) == {"strict", "upstream"}
