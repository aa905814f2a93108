"""How commands end, and what they refuse before anything starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from analysis import cli as analysis
from generators import cli as generators_cli
from harness import checkup, compose, demo, plan
from harness.commandline import guarded
from harness.compose import load, load_raw, open_cell
from harness.errors import ConfigError
from harness.sweep import chaos, multirun
from harness.sweep.overrides import check_overrides

FULL = Path("/dev/full")


def run(*words):
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ConfigError("name another"), 2, "error: name another"),
        (OSError(28, "No space left on device", "/x"), 2, "error: /x: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_an_end_is_a_sentence(error, status, words):
    code = (
        "from harness.commandline import guarded\n"
        "from harness.errors import ConfigError\n"
        "def command():\n"
        "    print('half')\n"
        f"    raise {error!r}\n"
        "raise SystemExit(guarded(command))"
    )
    if isinstance(error, OSError) and error.filename:
        code = code.replace(repr(error), f"OSError(28, {error.strerror!r}, {error.filename!r})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert words in done.stderr and "Traceback" not in done.stderr


def test_control_characters_of_an_error_are_shown_not_obeyed(capsys):
    def command():
        raise ConfigError("no model \x1b[31mred\rname")

    assert guarded(command) == 2
    assert capsys.readouterr().err == "error: no model \\x1b[31mred\\rname\n"


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_at_the_last_flush_is_a_sentence():
    code = "from harness.commandline import guarded; raise SystemExit(guarded(lambda: print('x') or 0))"
    with FULL.open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2 and b"No space left" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("setting", ["model.path", "model.name", "model", "experiment", "results"])
@pytest.mark.parametrize("module", ["harness", "harness.plan"])
def test_a_name_longer_than_any_files_is_a_sentence(module, setting, tmp_path):
    done = run(
        module,
        f"{setting}={'m' * 300}",
        "hardware=cpu",
        *([] if setting == "results" else [f"results={tmp_path}"]),
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said and "Error" not in said
    assert "too long" in said or "300 characters" in said


def test_closed_streams_end_in_no_traceback():
    command = f"{sys.executable} -m harness.plan experiment=smoke hardware=cpu >&-"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_is_caught():
    assert guarded(lambda: signal.raise_signal(signal.SIGINT) or 0) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_a_line_and_lets_go_of_everything(number, capsys):
    released = []

    def command():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # a second one finds the first at work
            released.append(True)
        return 0

    assert guarded(command) == 128 + number
    assert capsys.readouterr().err == f"stopped by {number.name}\n" and released == [True]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert guarded(lambda: signal.raise_signal(signal.SIGHUP) or 5) == 5
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["modle=tiny"], "did you mean model"),
        (["+dept=3"], "did you mean depth"),
        (["+model.pth=x"], "did you mean model.path"),
        (["model=null"], "must be a string"),
        (["model=custom"], "model.path is not set: give it"),
        (
            ["model=qwen36_35b"],
            "there is no model=qwen36_35b: did you mean qwen3_6_35b\\? choose from custom",
        ),
        (["experiment=tabel_1"], "did you mean table_1\\?"),
        (["input=nosuch"], "there is no input=nosuch: choose from babilong_qa1, .*, random, vt$"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(words, answer):
    with pytest.raises(ConfigError, match=answer) as found:
        load([*words, "hardware=cpu"])
    assert "full_key" not in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize("launcher", ["slurm", "local_jobs"])
def test_a_launcher_that_is_not_installed_goes_by_its_own_name(launcher, monkeypatch):
    words = ["hardware=cpu", f"hydra/launcher={launcher}"]
    load_raw(["hardware=cpu"], with_hydra=True)  # Hydra has looked for plugins
    installed = ConfigStore.instance().repo["hydra"]["launcher"]
    for name in [name for name in installed if name.startswith("submitit")]:
        monkeypatch.delitem(installed, name)
    with pytest.raises(ConfigError, match=rf"^hydra/launcher={launcher} needs .*install -e '\.\[slurm\]'"):
        load_raw(words, with_hydra=True)


def test_filters_need_an_experiment():
    with pytest.raises(ConfigError, match="add experiment=NAME"):
        open_cell(load(["++only.depth=[3]", "hardware=cpu"]))


@pytest.mark.parametrize(
    "word", ["experiment=[table_1,table_2]", "model=[tiny,custom]", "depth=glob(*)", "depth=interval(1,5)"]
)
def test_lists_that_hydra_would_cut_short_are_refused(word):
    with pytest.raises(ConfigError, match="a,b"):
        check_overrides([word])


@pytest.mark.parametrize("word", ["only={depth: [3]}", "input_params={cwe: {words: 5}}"])
def test_whole_mappings_are_taken_too(word, tmp_path):
    words = ["experiment=table_6", "hardware=cpu", f"results={tmp_path}", word]
    assert multirun.plan_of(multirun.normalised(words)).points


def test_the_plan_takes_the_flag_of_a_sweep(tmp_path, capsys):
    assert plan.main(["arm=native,ring", "-m", "hardware=cpu", f"results={tmp_path}", "--brief"]) == 0
    assert "points: 2 (2 to run)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["input.params.keys=abc"], "keys='abc' must be a whole number"),
        (["input.params.keys=0"], "keys=0 must be a whole number of at least 1"),
        (["input.params.keys=-2"], "keys=-2 must be a whole number of at least 1"),
        (["input=cwe", "input.params.words=0"], "words=0 must be"),
        (["input=fwe", "input.params.alpha=0"], "alpha=0 must lie above 1"),
        (["input=babilong_qa1", "+input.params.facts=1"], "facts=1 must be"),
    ],
)
def test_the_plan_says_which_knob_is_wrong(words, said, tmp_path, capsys):
    assert plan.main([*words, "hardware=cpu", f"results={tmp_path}"]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "word", ["results=", "results='  '", "model.path=", "server.log_path=", "server.python=", "checkpoints="]
)
def test_an_empty_setting_is_not_the_current_folder(word, capsys):
    assert plan.main([word, "hardware=cpu"]) == 1
    assert f"error: {word.partition('=')[0]}= is empty: give it a value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (analysis.main, ["export", "--out", ""]),
        (analysis.main, ["report", "--results", " "]),
        (analysis.main, ["import-log", ""]),
        (demo.main, ["--results", ""]),
        (plan.main, ["--json", ""]),
        (checkup.main, ["--results", ""]),
        (chaos.main, ["--results", ""]),
    ],
)
def test_an_empty_option_is_not_the_current_folder(main, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "it is empty: name a file or folder" in capsys.readouterr().err


def test_an_empty_name_is_no_result_set(capsys):
    assert analysis.main(["compare", "", "results/reference"]) == 2
    assert "an empty name is neither" in capsys.readouterr().err


def test_the_doctor_looks_at_the_checkpoint_of_a_model(capsys):
    assert checkup.main(["model=custom", "model.path=/no/such/model", "hardware=cpu"]) == 1
    assert "/no/such/model" in capsys.readouterr().out


def test_chaos_keeps_its_hands_off_records_of_others(tmp_path, capsys):
    (tmp_path / "points" / "0123456789abcdef").mkdir(parents=True)
    assert chaos.main(["--results", str(tmp_path), "--kills", "0"]) == 1
    assert "would be lost" in capsys.readouterr().err


def test_help_of_the_harness_names_it_and_survives_a_closed_pipe():
    said = run("harness", "--help").stdout
    assert "python -m harness [OVERRIDE" in said
    assert (
        "\nmodel: custom, nemotron3_super_120b" in said and "\nserver: docker, enroot, local, url\n" in said
    )
    assert "_schema" not in said and "\ntokenizer:" not in said, "what nobody chooses is no choice"
    head = f"{sys.executable} -m harness --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", head], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr


@pytest.mark.parametrize("group", ["model", "hardware", "server", "input"])
def test_only_what_can_be_chosen_is_offered(group):
    with pytest.raises(ConfigError, match=f"there is no {group}=nosuch") as refused:
        compose.load([f"{group}=nosuch"])
    offered = str(refused.value).partition("choose from ")[2].replace(",", " ")
    assert {"model": "tiny", "hardware": "b200", "server": "url", "input": "cwe"}[group] in offered.split()
    assert "_schema" not in offered


def test_the_generators_offer_no_schema_either():
    with pytest.raises(ConfigError, match="'input/nosuch' Available options") as refused:
        generators_cli.read_config(["+input=nosuch"])
    assert "_schema" not in str(refused.value) and "provider=" not in str(refused.value)


@pytest.mark.parametrize("word", ["results=/dev/null", "modle=x", "experiment=nosuch"])
def test_the_harness_refuses_in_one_sentence(word):
    done = run("harness", word, "hardware=cpu", "arm=nosuch")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["harness", "hardware=cpu"],
        ["harness.plan", "hardware=cpu"],
        ["harness.doctor"],
        ["harness.demo"],
        ["analysis", "tables"],
        ["generators", "tasks"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    ("name", "said"), [("SIGINT", "interrupted"), ("SIGTERM", "stopped by SIGTERM")], ids=["int", "term"]
)
def test_a_signal_while_modules_load_is_a_line(words, name, said, tmp_path):
    code = (
        "import os, runpy, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('hydra', 'rich', 'numpy', 'omegaconf', 'pandas'):\n"
        "            os.kill(os.getpid(), signal.NAME)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.replace("NAME", name), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (128 + getattr(signal, name), f"{said}\n")
