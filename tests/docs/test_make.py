"""Make's rules hand over what they are given, whatever it holds."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# These tests may run under make themselves.
ALONE = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in {"RESULTS", "HARDWARE"}}
NAME = "my results; $HOME `x` *"


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("table-2", [["-m", "analysis", "table", "2", "--results", NAME]]),
        ("figure-3", [["-m", "analysis", "figure", "3", "--results", NAME]]),
        ("report", [["-m", "analysis", "report", "--results", NAME]]),
        ("plan", [["-m", "harness.plan", "experiment=all", "hardware=a b", f"results={NAME}", "--brief"]]),
        (
            "reproduce-table-6",
            [
                ["-m", "harness", "experiment=table_6", "hardware=a b", f"results={NAME}"],
                ["-m", "analysis", "table", "6", "--results", NAME],
            ],
        ),
        ("chaos", [["-m", "harness.sweep.chaos", "--kills", "20", "--results", f"{NAME}/chaos"]]),
    ],
)
def test_a_folder_with_any_name_reaches_the_command(tmp_path, rule, wanted):
    python, log = tmp_path / "bin" / "python", tmp_path / "log"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" end >> {log}\n')
    python.chmod(0o755)
    installed = tmp_path / ".installed"
    installed.touch()
    given = [f"VENV={tmp_path}", "RESULTS=" + NAME.replace("$", "$$"), "HARDWARE=a b"]
    subprocess.run(
        ["make", "-s", "-o", "pyproject.toml", "-o", str(installed), rule, *given],
        cwd=ROOT,
        env=ALONE,
        check=True,
    )
    assert [words.splitlines() for words in log.read_text().split("end\n") if words] == wanted


def test_the_default_folder_is_left_to_the_command(tmp_path):
    said = subprocess.run(
        ["make", "-n", "-o", "pyproject.toml", f"VENV={tmp_path}", "-o", f"{tmp_path}/.installed", "table-2"],
        cwd=ROOT, env=ALONE, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert said.split() == [f"{tmp_path}/bin/python", "-m", "analysis", "table", "2"]
