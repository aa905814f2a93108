"""The sweep through a real SLURM of one node; needs Debian's slurm-wlm and munge."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.records import Outcome, read_all
from harness.server.launch import BOOT_MARK
from harness.server.processes import find_orphans

HERE = Path(__file__).parent
STAND_IN = HERE.parent / "harness" / "sweep" / "stand_in.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(shutil.which(p) for p in ("slurmctld", "slurmd", "munged", "sbatch")),
        reason="needs root and Debian's slurm-wlm and munge",
    ),
]


def test_pyxis_steps_serve_and_end_with_their_harness(tmp_path):
    """Real servers as SLURM steps; the container options are checked, not carried out."""
    shim = tmp_path / "bin" / "srun"
    shim.parent.mkdir()
    shim.write_text(f"#!{sys.executable}\n" + (HERE / "srun_without_pyxis.py").read_text())
    shim.chmod(0o755)
    results = tmp_path / "results"
    done = subprocess.run(
        [
            HERE / "single_node.sh", tmp_path / "slurm", "salloc", "--ntasks=1",
            sys.executable, "-m", "harness", "experiment=smoke", "hardware=cpu", "only.arm=[native,ring]",
            f"results={results}", "server=enroot", "server.image='a b;c'", f"server.python={sys.executable}",
        ],
        env={**os.environ, "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"},
        check=False, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    records, errors = read_all(results)
    assert errors == []
    assert {r.point.arm: r.outcome for r in records} == {"native": Outcome.OK, "ring": Outcome.OK}
    for line in (shim.parent / "options.jsonl").read_text().splitlines():
        options = json.loads(line)
        assert "--container-image=a b;c" in options
        assert any(o.startswith("--container-mounts=") and "checkpoint" in o for o in options)
        assert any(o.startswith("--container-env=") and "SGLANG_PLUGINS" in o for o in options)
    assert find_orphans(BOOT_MARK, [r.server.boot_id for r in records]) == []


def test_a_sweep_runs_as_slurm_jobs_one_a_boot(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    interpreter.chmod(0o755)
    results = tmp_path / "results"
    done = subprocess.run(
        [
            HERE / "single_node.sh", tmp_path / "slurm", sys.executable, "-m", "harness", "-m",
            "experiment=smoke", "hardware=cpu", f"results={results}", f"server.python={interpreter}",
            "hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.array_parallelism=2",
        ],
        check=False, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    records, errors = read_all(results)
    assert errors == []
    assert Counter(r.outcome for r in records) == {Outcome.OK: 4}
    assert len(list((results / "logs" / "servers").glob("*.log"))) == 4
