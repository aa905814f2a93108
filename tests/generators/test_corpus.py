"""Corpora: resumed, the same from any number of processes, and audited."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import orjson
import psutil
import pytest

import generators
from generators import cli
from generators.corpus import Request, build_corpus
from generators.record import Record
from generators.verify import verify
from harness.errors import ConfigError, InputError
from tests.generators.cases import DATA

TOKENIZER = str(DATA / "small_bpe")


def request(**changes) -> Request:
    return Request(**{"task": "niah_multiquery", "context_tokens": 700, "tokenizer": TOKENIZER, **changes})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build_corpus(request(), count=3, folder=tmp_path_factory.mktemp("corpus"), workers=1)


def test_what_a_corpus_says_of_itself(corpus):
    manifest = json.loads(corpus.manifest.read_text())
    assert manifest["count"] == len(manifest["records"]) == 3
    lines = [Record.from_json(line) for line in corpus.records.read_bytes().splitlines()]
    assert [line.summary() for line in lines] == manifest["records"]
    assert len({line.sample_id for line in lines}) == 3
    assert all(line.token_count == 700 for line in lines)
    assert not corpus.parts.exists()
    assert verify(corpus.records) == verify(corpus.manifest) == []


def test_several_processes_write_the_same_bytes(corpus, tmp_path):
    again = build_corpus(request(), count=3, folder=tmp_path, workers=2)
    assert again.name == corpus.name
    assert again.records.read_bytes() == corpus.records.read_bytes()
    assert again.manifest.read_bytes() == corpus.manifest.read_bytes()


def test_an_interrupted_corpus_goes_on_and_damaged_parts_are_built_again(corpus, tmp_path):
    seen = []

    def stop_after_one(done, total):
        seen.append((done, total))
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_corpus(request(), count=3, folder=tmp_path, workers=1, progress=stop_after_one)
    left = next(tmp_path.glob("*.parts"))
    assert [part.name for part in left.glob("*.json")] == ["000000.json"]
    (left / "000001.json").write_bytes((left / "000000.json").read_bytes()[:-100])
    done = []
    again = build_corpus(request(), count=3, folder=tmp_path, workers=1, progress=lambda a, b: done.append(a))
    assert done == [1, 2, 3]
    assert again.records.read_bytes() == corpus.records.read_bytes()


def test_a_finished_corpus_is_left_alone_and_a_larger_one_adds_to_it(corpus, tmp_path):
    small = build_corpus(request(), count=2, folder=tmp_path, workers=1)
    before = small.records.stat().st_mtime_ns
    done = []
    build_corpus(request(), count=1, folder=tmp_path, workers=1, progress=lambda a, b: done.append((a, b)))
    assert small.records.stat().st_mtime_ns == before
    assert done == [(1, 1)]
    build_corpus(request(), count=3, folder=tmp_path, workers=1, progress=lambda a, b: done.append((a, b)))
    assert done[1:] == [(2, 3), (3, 3)]
    assert small.records.read_bytes() == corpus.records.read_bytes()
    assert small.manifest.read_bytes() == corpus.manifest.read_bytes()


def test_different_requests_never_share_a_file(tmp_path):
    names = {
        build_corpus(each, count=1, folder=tmp_path, workers=1).name
        for each in (request(), request(params={"keys": 3}), request(seed=1), request(context_tokens=701))
    }
    assert len(names) == 4


def test_another_pythons_library_is_another_corpus(tmp_path, monkeypatch):
    """Its text is another one: resumed on another interpreter, a corpus would hold both."""
    wanted = request(task="code_repository", context_tokens=1500)
    here = build_corpus(wanted, count=1, folder=tmp_path, workers=1)
    manifest = json.loads(here.manifest.read_text())
    assert manifest["sources"] == f"standard library of Python {platform.python_version()}"
    assert verify(here.records) == []
    monkeypatch.setattr("generators.code_qa.platform.python_version", lambda: "3.99.1")
    assert build_corpus(wanted, count=1, folder=tmp_path, workers=1).name != here.name
    (problem,) = verify(here.records)
    assert "this is the standard library of Python 3.99.1" in problem


def tampered(corpus, tmp_path, change, number=1):
    """A copy of the corpus with one record changed; hashes in it are made to fit."""
    folder = tmp_path / "copy"
    shutil.copytree(corpus.folder, folder)
    path = folder / corpus.records.name
    lines = path.read_bytes().splitlines()
    data = orjson.loads(lines[number])
    change(data)
    lines[number] = Record.from_json(orjson.dumps(data)).to_json()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return " / ".join(verify(path))


def replace_text(old, new):
    def change(data):
        assert old in data["text"] or old.startswith("@")
        target = data["needles"][0]["text"] if old == "@needle" else old
        data["text"] = data["text"].replace(target, new or "x" * len(target), 1)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["input_ids"].append(5), "701 tokens, not 700"),
        (lambda d: d["input_ids"].__setitem__(50, d["input_ids"][50] ^ 1), "not those of its text"),
        (replace_text("@needle", ""), "needle 0 is in the text 0 times"),
        (lambda d: d["needles"][0].update(token_offset=3), "needle 0 is not at token 3"),
        (lambda d: d["needles"][0].update(char_offset=3), "needle 0 is not at character 3"),
        (lambda d: d["gold"].__setitem__(0, "1234567"), "other answers than the gold ones"),
        (lambda d: d.update(seed=9), "its seed is not the corpus's"),
        (lambda d: d["details"].pop("keys"), "details are damaged"),
        (replace_text("user\n", "system\n"), "not the chat template"),
    ],
)
def test_verify_finds_what_was_changed(corpus, tmp_path, change, message):
    problems = tampered(corpus, tmp_path, change)
    assert message in problems
    assert "differs from the manifest" in problems
    assert "record 0" not in problems


def test_verify_finds_missing_records_and_foreign_tokenizers(corpus, tmp_path):
    shutil.copytree(corpus.folder, tmp_path / "copy")
    path = tmp_path / "copy" / corpus.records.name
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    problems = " / ".join(verify(path))
    assert "the file holds 1 records, the manifest 3" in problems
    assert "SHA-256" in problems
    path.write_bytes(b"{}\n")
    assert "not a record of the generators" in " / ".join(verify(path))
    other = tmp_path / "other"
    shutil.copytree(DATA / "small_bpe", other)
    config = json.loads((other / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages[0].content }}"
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="give the right one"):
        verify(path, tokenizer_path=str(other))


@pytest.mark.parametrize("given", [".jsonl", ".manifest.json"])
@pytest.mark.parametrize("lacking", [".jsonl", ".manifest.json"])
def test_verify_names_the_file_that_is_missing(tmp_path, given, lacking):
    with pytest.raises(InputError, match=f"no file {tmp_path}/nothing{given}: "):
        verify(tmp_path / f"nothing{given}")
    (other,) = {".jsonl", ".manifest.json"} - {lacking}
    (tmp_path / f"half{other}").write_text("{}")
    with pytest.raises(InputError, match=f"no file {tmp_path}/half{lacking}"):
        verify(tmp_path / f"half{given}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("params", None),
        ("params", {"keys": "x"}),
        ("needles", [None]),
        ("needles", "x"),
        ("content_span", None),
        ("content_span", [0]),
        ("details", []),
        ("details", {"keys": None, "unique": "values"}),
        ("text", 5),
        ("text", []),
        ("gold", None),
        ("input_ids", "x"),
        ("input_ids", [-1]),
        ("task", None),
        ("context_tokens", "x"),
    ],
)
def test_verify_names_a_record_with_fields_of_the_wrong_kind(corpus, tmp_path, field, value):
    shutil.copytree(corpus.folder, tmp_path, dirs_exist_ok=True)
    lines = corpus.records.read_bytes().splitlines()
    lines[1] = orjson.dumps({**orjson.loads(lines[1]), field: value})
    (tmp_path / corpus.records.name).write_bytes(b"\n".join(lines) + b"\n")
    problems = verify(tmp_path / corpus.records.name)
    assert any(problem.startswith("record 1: ") for problem in problems)
    assert not any(problem.startswith("record 0: ") for problem in problems)


@pytest.mark.parametrize(
    "change",
    [
        {"records": None},
        {"records": {}},
        {"records": ["x"]},
        {"count": "3"},
        {"template_options": 5},
        {"schema": 2},
    ],
)
def test_verify_refuses_a_manifest_of_another_kind(corpus, tmp_path, change):
    shutil.copytree(corpus.folder, tmp_path, dirs_exist_ok=True)
    manifest = tmp_path / corpus.manifest.name
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(InputError, match="no manifest that this version can read"):
        verify(manifest)


def test_verify_wants_a_file(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        verify(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("count", 0), ("count", 10**7), ("workers", -1)])
def test_counts_beyond_all_measure_are_refused(tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        build_corpus(request(), folder=tmp_path, **{"count": 1, name: value})


@pytest.mark.parametrize("change", [{"seed": -1}, {"seed": 2**64}, {"context_tokens": 10**12}])
def test_seeds_and_lengths_beyond_all_measure_are_refused(tmp_path, change):
    with pytest.raises(ConfigError, match="must be a whole number"):
        build_corpus(request(**change), count=1, folder=tmp_path)


def test_a_manifest_of_fewer_records_is_written_anew(corpus, tmp_path):
    """As after a stop between the two files of a corpus that grew."""
    shutil.copytree(corpus.folder, tmp_path, dirs_exist_ok=True)
    manifest = json.loads(corpus.manifest.read_text())
    (tmp_path / corpus.manifest.name).write_text(json.dumps({**manifest, "records": manifest["records"][:1]}))
    again = build_corpus(request(), count=2, folder=tmp_path, workers=1)
    assert again.manifest.read_bytes() == corpus.manifest.read_bytes()
    assert again.records.read_bytes() == corpus.records.read_bytes()


def test_two_commands_for_the_same_corpus_do_not_spoil_it(corpus, tmp_path, monkeypatch):
    """The other one joins the parts while this one is about to."""
    from generators import corpus as module

    join = module._finish

    def joined_by_another_first(*arguments):
        monkeypatch.setattr(module, "_finish", join)
        join(*arguments)
        join(*arguments)

    monkeypatch.setattr(module, "_finish", joined_by_another_first)
    again = build_corpus(request(), count=3, folder=tmp_path, workers=1)
    assert again.records.read_bytes() == corpus.records.read_bytes()
    assert verify(again.records) == []

    def taken_away(target, _request, _tokenizer, _count):
        shutil.rmtree(target.parts)
        target.manifest.unlink(missing_ok=True)
        target.records.unlink(missing_ok=True)
        join(target, _request, _tokenizer, _count)

    monkeypatch.setattr(module, "_finish", taken_away)
    with pytest.raises(InputError, match="Another process is at work"):
        build_corpus(request(seed=5), count=1, folder=tmp_path, workers=1)


def kill_own_process(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_reported(tmp_path, monkeypatch):
    from generators import corpus as module

    monkeypatch.setattr(module, "_work", kill_own_process)
    with pytest.raises(InputError, match="ended from outside"):
        build_corpus(request(), count=2, folder=tmp_path, workers=2)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(
    corpus, tmp_path, monkeypatch, capsys, error
):
    from generators import files

    writes = []

    def full(handle):
        writes.append(handle)
        if len(writes) > 1:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(files.os, "fsync", full)
    command = ["task=niah_multiquery", "context=700", f"tokenizer={TOKENIZER}", "count=3", "workers=1"]
    assert cli.main([*command, f"out={tmp_path}"]) == 2
    message = capsys.readouterr().err
    assert os.strerror(error) in message
    assert "Traceback" not in message
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["000000.json"]
    monkeypatch.undo()
    assert cli.main([*command, f"out={tmp_path}"]) == 0
    made = next(tmp_path.glob("*.jsonl"))
    assert made.read_bytes() == corpus.records.read_bytes()


def test_an_output_folder_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    command = [
        "task=vt",
        "context=700",
        f"tokenizer={TOKENIZER}",
        "workers=1",
        f"out={tmp_path / 'file' / 'x'}",
    ]
    assert cli.main(command) == 2
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ä-漢", os.fsdecode(b"no-text-\xff")])
def test_a_path_that_the_terminal_cannot_show_is_no_failure(tmp_path, name):
    command = [sys.executable, "-m", "generators", "task=vt", "context=700", f"tokenizer={TOKENIZER}"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*command, "workers=1", f"out={tmp_path / name}"],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b".manifest.json" in done.stdout


def test_paths_need_no_quotes(tmp_path, capsys, monkeypatch):
    odd = tmp_path / "a b, {c} = [d] 'e'"
    odd.mkdir()
    shutil.copy(DATA / "published.jsonl", odd / "p.jsonl")
    shutil.copytree(TOKENIZER, odd / "tokenizer")
    monkeypatch.setenv("HOME", str(odd))
    command = ["task=published", f"path={odd / 'p.jsonl'}", "tokenizer=~/tokenizer", "workers=1", "out=~/out"]
    assert cli.main(command) == 0
    assert next((odd / "out").glob("*.jsonl")).is_file()
    for quoted in ("root=null", "root='null'"):
        assert cli.read_config(["task=code_repository", quoted]).input.params["root"] in {None, "null"}


def test_command_line_takes_variables_of_a_template_and_names_wrong_kinds(tmp_path, capsys):
    base = ["task=niah_single", "context=2048", "workers=1", f"out={tmp_path}"]
    assert cli.main([*base, "tokenizer.template_options={enable_thinking: false}"]) == 0
    (manifest,) = tmp_path.glob("*.manifest.json")
    assert json.loads(manifest.read_text())["template_options"] == {"enable_thinking": False}
    assert cli.main([*base, "context=4K"]) == 2
    assert "context=4K is no integer." in capsys.readouterr().err


def test_command_line_builds_and_verifies(tmp_path, capsys):
    arguments = ["task=niah_multiquery_enum", "context=900", f"tokenizer={TOKENIZER}", "count=2", "workers=1"]
    folder = tmp_path / "a folder, with = signs"
    assert cli.main([*arguments, f"out={folder}", "keys=3"]) == 0
    written = capsys.readouterr().out.split("\n")[0]
    manifest = json.loads(next(folder.glob("*.manifest.json")).read_text())
    assert manifest["params"]["keys"] == 3
    assert manifest["count"] == 2
    assert cli.main(["verify", written]) == 0
    assert ": 2 records looked at, all right\n" in capsys.readouterr().out
    data = bytearray(next(folder.glob("*.jsonl")).read_bytes())
    data[data.index(b"Secret")] = ord("Z")
    next(folder.glob("*.jsonl")).write_bytes(bytes(data))
    assert cli.main(["verify", written]) == 1
    assert "record 0: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["task=niah"], "There is no task 'niah'"),
        (["task=vt", "context=many"], "many"),
        (["task=vt", f"tokenizer={TOKENIZER}", "chain=2"], "has no parameter chain"),
        (["task=vt", "tokenizer=/nowhere"], "no tokenizer.json"),
        (["task=vt", f"tokenizer={TOKENIZER}", "context=20"], "20 tokens are too few"),
        (["task=longbench_code_qa", f"tokenizer={TOKENIZER}"], "needs data=..."),
        (["task=vt", "tokenizer="], "tokenizer= is empty"),
        (["task=vt", f"tokenizer={TOKENIZER}", "out="], "out= is empty"),
        (["task=vt", f"tokenizer={TOKENIZER}", "out=''"], "out= is empty"),
        (["vt"], "not of the form name=value"),
        (["verify"], "Verify takes one file"),
    ],
)
def test_command_line_refuses_in_one_sentence(tmp_path, capsys, arguments, message):
    extra = [f"out={tmp_path}", "workers=1"] if arguments[0] not in {"verify", "vt"} else []
    assert cli.main([*extra, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "words",
    [
        ["task=vt", "context=20"],
        ["task=niah_multikey", "keys=0"],
        ["task=vt", "tokenizer=/nowhere"],
        ["task=babilong_qa1", "data=/nowhere.json"],
    ],
)
def test_no_bar_stands_before_a_refusal(tmp_path, words):
    command = [sys.executable, "-m", "generators", "tokenizer=tiny", "workers=1", f"out={tmp_path}", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "/?" not in done.stderr and "━" not in done.stderr


def test_the_package_loads_nothing_before_it_is_asked():
    code = "import sys, generators; sys.exit('numpy' in sys.modules or not callable(generators.build))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="nothing"):
        generators.nothing  # noqa: B018


def test_every_configuration_names_a_task_and_its_parameters():
    from generators.tasks import REQUIRED, TASKS

    for name in cli._choices("input"):
        config = cli.read_config([f"task={name}", f"tokenizer={TOKENIZER}"])
        task = TASKS[config.input.task]
        assert set(config.input.params) <= set(task.defaults), name
        assert not any(value is REQUIRED for value in config.input.params.values())
    assert {cli.read_config([f"task={n}"]).input.task for n in cli._choices("input")} == set(TASKS)


def test_help_and_task_list(capsys):
    assert cli.main([]) == cli.main(["--help"]) == cli.main(["tasks"]) == 0
    text = capsys.readouterr().out
    assert "niah_multiquery_enum" in text
    assert "verify FILE" in text


def test_two_interrupts_end_a_build_and_its_processes(tmp_path):
    words = ["task=vt", "context=200000", "tokenizer=tiny", "count=50", "workers=2", f"out={tmp_path}"]
    command = [sys.executable, "-m", "generators", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while len(workers := psutil.Process(process.pid).children()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            for _ in range(20):  # two are enough, if the second does not come before the first is taken
                os.killpg(process.pid, signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    _, said = process.communicate(timeout=3)
                    break
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert b"goes on with the rest" in said and b"Traceback" not in said
    assert psutil.wait_procs(workers, timeout=30)[1] == []


def test_help_is_help_wherever_it_stands(capsys):
    assert cli.main(["verify", "--help"]) == 0
    assert "python -m generators verify FILE" in capsys.readouterr().out
