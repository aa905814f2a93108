"""A record of a text that was edited since is not taken for one of the text as it is."""

import shutil

import pytest

from harness.engine.tiny import checkpoint_path
from harness.errors import InputError
from harness.measure import inputs as measure_inputs
from harness.measure.inputs import InputStore
from harness.records import read_all
from harness.sweep import multirun, unkeyed
from harness.sweep.plan import State
from harness.sweep.unkeyed import PromptOrigins
from tests.harness.test_inputs import point

OLD = "The old harbour was quiet that day. " * 400
NEW = "A new bridge stood beside the river. " * 400


def states(sweep, *words):
    plan = multirun.plan_of(
        multirun.normalised(
            ["hardware=cpu", f"results={sweep.results}", f"server.python={sweep.interpreter}", *words]
        )
    )
    return [(planned.state, planned.reason) for planned in plan.points]


def test_an_edited_text_is_told_and_measured_again_on_demand(sweep, tmp_path):
    text = tmp_path / "my.txt"
    text.write_text(OLD)
    prose = f"input.params={{keys: 8, haystack_kind: prose, files: [{text}]}}"
    words = ("model=tiny", "arm=dense", "context=700", "max_new_tokens=8", prose)
    sweep.run(*words)  # the stand-in's log has too few steps for a measurement: exit status 1
    assert states(sweep, *words) == [(State.DONE, "ok")]
    (first,), _ = read_all(sweep.results)

    text.write_text(NEW)
    told = f"done with other settings: the text of {text} changed: retry=all measures it again"
    assert states(sweep, *words) == [(State.OTHER, told)]
    again = sweep.run(*words)
    assert again.returncode == 1 and f"the text of {text} changed" in "".join(again.stdout.split("\n"))
    sweep.run(*words, "retry=all")
    (second,), _ = read_all(sweep.results)
    assert second.input.sha256_ids != first.input.sha256_ids
    assert states(sweep, *words) == [(State.DONE, "ok")]

    text.unlink()
    assert states(sweep, *words) == [(State.DONE, "ok")], "what is not here is unknown, not changed"


def settings(spec, of_point, tokenizer) -> dict:
    return PromptOrigins().beside(spec, of_point, str(tokenizer)).settings


def test_each_thing_that_makes_a_prompt_is_compared(tmp_path, monkeypatch):
    (planned,) = multirun.plan_of(["model=tiny", "arm=dense", "hardware=cpu", f"results={tmp_path}"]).boots
    tokenizer = shutil.copytree(checkpoint_path(), tmp_path / "checkpoint")
    code = point("code_repository")
    before = settings(planned.spec, code, tokenizer)
    assert unkeyed.changes(before, settings(planned.spec, code, tokenizer)) == ""
    assert unkeyed.changes({}, before) == "", "what a record does not say is unknown"
    with (tokenizer / "tokenizer.json").open("a") as file:
        file.write("\n")
    monkeypatch.setattr("generators.code_qa.platform.python_version", lambda: "3.99.1")
    monkeypatch.setattr("harness.measure.origins.GENERATOR_VERSION", "0")
    said = unkeyed.changes(before, settings(planned.spec, code, tokenizer))
    assert "the text was standard library of Python 3" in said and "3.99.1" in said
    assert "the tokenizer changed" in said and "the generators' version was 1, is 0" in said


def test_a_tokenizer_that_is_not_here_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    (planned,) = multirun.plan_of(["model=tiny", "arm=dense", "hardware=cpu", f"results={tmp_path}"]).boots
    monkeypatch.setattr(unkeyed, "origins_of", lambda *_: pytest.fail("it was looked for"))
    assert settings(planned.spec, point("vt"), "somebody/a-model") == planned.spec.settings


def test_what_cannot_be_looked_at_is_unknown_and_ends_no_plan(tmp_path, monkeypatch):
    (planned,) = multirun.plan_of(["model=tiny", "arm=dense", "hardware=cpu", f"results={tmp_path}"]).boots

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(unkeyed, "origins_of", forbidden)
    assert settings(planned.spec, point("vt"), checkpoint_path()) == planned.spec.settings


def test_a_text_that_changes_while_it_is_read_gives_no_prompt(tmp_path, monkeypatch):
    text = tmp_path / "my.txt"
    text.write_text(OLD)
    build = measure_inputs.generators.build

    def edit_after_building(*args, **kwargs):
        record = build(*args, **kwargs)
        text.write_text(NEW)
        return record

    monkeypatch.setattr(measure_inputs.generators, "build", edit_after_building)
    params = {"haystack_kind": "prose", "files": [str(text)]}
    wanted = point("niah_single").model_copy(update={"task_params": params})
    with pytest.raises(InputError, match="changed while it was read"):
        InputStore(checkpoint_path()).record(wanted)
