"""Points that a cluster job left without a record carry what the scheduler knows of the job."""

from pathlib import Path

import pytest

from harness.sweep.cluster import job_reasons, run_quietly


@pytest.fixture
def sweep_directory(tmp_path: Path) -> Path:
    for name in ("7_0", "7_1", "7_2", "7_10"):
        (tmp_path / ".submitit" / name).mkdir(parents=True)
    (tmp_path / ".submitit" / "7_2" / "7_2_0_result.pkl").write_bytes(b"never opened")
    (tmp_path / ".submitit" / "notes").mkdir()
    return tmp_path


def test_accounting_is_asked_first(sweep_directory):
    told = {"7_0": "TIMEOUT|0:0\n", "7_1": "OUT_OF_ME+|0:125\n", "7_2": "COMPLETED|0:0\n", "7_10": "\n"}
    reasons = job_reasons(sweep_directory, lambda command: told[command[-1]] if command[0] == "sacct" else "")
    assert set(reasons) == {0, 1, 2, 10}
    assert "timeout" in reasons[0]
    assert "run the same command again" in reasons[0]
    assert "oom_or_killed" in reasons[1]
    assert "completed and left no result" in reasons[2]
    assert "does not know the job" in reasons[10]
    assert str(sweep_directory / ".submitit" / "7_0") in reasons[0]


def test_without_accounting_the_controller_is_asked(sweep_directory):
    def run(command):
        if command[0] == "scontrol" and command[-1] == "7_1":
            return "JobId=9 ArrayJobId=7 JobName=x JobState=NODE_FAIL Reason=None ExitCode=0:0 Priority=1"
        return ""

    assert "node_lost" in job_reasons(sweep_directory, run)[1]


def test_no_cluster_no_reasons(tmp_path):
    assert job_reasons(tmp_path) == {}
    assert run_quietly(["no-such-program-here"]) == ""
    assert run_quietly(["false"]) == ""
