"""What points take from the generators."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from harness.engine.tiny import checkpoint_path
from harness.errors import InputError
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


@pytest.mark.parametrize("context", [200, 400])
def test_a_finished_prompt_says_the_length_that_it_has(tmp_path: Path, context: int) -> None:
    """Before a server starts: a longer one would not fit it, a shorter one would be measured in vain."""
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"context": "one two three " * 60, "input": "how many?", "outputs": ["3"]}))
    inputs = InputStore(checkpoint_path())
    wanted = point("published").model_copy(
        update={"context_tokens": context, "task_params": {"path": str(file)}}
    )
    tokens = len(inputs.record(wanted).input_ids)
    with pytest.raises(InputError, match=rf"has {tokens} tokens, not {context}: give context={tokens} "):
        inputs.prompt_ids(wanted)
    fitting = wanted.model_copy(update={"context_tokens": tokens})
    assert len(inputs.prompt_ids(fitting)) == tokens
