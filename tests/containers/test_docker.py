"""Real servers in real Docker containers; needs root and Debian's docker.io."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.records import Outcome, read_all

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(shutil.which(p) for p in ("dockerd", "docker")),
        reason="needs root and Debian's docker.io",
    ),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    directory = tmp_path_factory.mktemp("daemon")
    running = subprocess.Popen(
        [HERE / "daemon.sh", directory, "sh", "-c", f"touch {directory}/up; cat"], stdin=subprocess.PIPE
    )
    for _ in range(400):
        if (directory / "up").exists():
            break
        if running.poll() == 77:
            pytest.skip("no Docker daemon can be started here")
        time.sleep(0.2)
    assert running.poll() is None
    yield {**os.environ, "DOCKER_HOST": f"unix://{directory}/socket"}
    running.communicate(timeout=60)


@pytest.fixture
def command(tmp_path):
    # The image is empty: all that a server needs is this machine's.
    own = {Path(sys.prefix), Path(sys.base_prefix), ROOT}
    places = [*("/usr", "/lib", "/lib64", "/bin", "/etc"), *sorted(str(path.resolve()) for path in own)]
    return [
        sys.executable, "-m", "harness", "experiment=smoke", "hardware=cpu", "server=docker",
        "server.image=windowed-mtp-test:1", f"server.python={sys.executable}",
        f"server.mounts=[{','.join(p for p in places if Path(p).exists())}]", f"results={tmp_path}/results",
    ]  # fmt: skip


def containers(daemon):
    said = subprocess.run(
        ["docker", "ps", "--all", "--quiet"], env=daemon, check=True, capture_output=True, text=True
    )
    return said.stdout.split()


def test_a_user_whom_the_image_does_not_know_serves_both_kinds_of_draft(daemon, command, tmp_path):
    homes = tmp_path / "homes" / "windowed-mtp" / "container"
    homes.mkdir(parents=True)
    os.chown(homes, 12345, 12345)
    for place in [*homes.parents][:-2]:
        place.chmod(place.stat().st_mode | 0o011)
    done = subprocess.run(
        [*command, "only.arm=[native,ring]", "server.container_arguments=[--user,'12345:12345']"],
        env={**daemon, "XDG_CACHE_HOME": str(tmp_path / "homes")},
        check=False, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    records, errors = read_all(tmp_path / "results")
    assert errors == []
    assert sorted((r.point.arm, r.outcome) for r in records) == [("native", Outcome.OK), ("ring", Outcome.OK)]
    ring = max(records, key=lambda r: r.point.arm)
    assert ring.server.engine_report["mode"] == "ring"
    assert ring.server.image["name"] == "windowed-mtp-test:1"
    assert ring.server.image["id"].startswith("sha256:")
    assert ring.environment["versions"] == ring.server.versions
    assert ring.server.versions["sglang"] == ring.server.arguments["version"]
    assert containers(daemon) == []


def test_a_killed_harness_leaves_no_container(daemon, command):
    running = subprocess.Popen([*command, "only.arm=ring"], env=daemon, stdout=subprocess.DEVNULL)
    while not containers(daemon):
        assert running.poll() is None
        time.sleep(0.5)
    running.kill()
    running.wait()
    for _ in range(120):
        if not containers(daemon):
            return
        time.sleep(0.5)
    pytest.fail(f"containers {containers(daemon)} are left")


def test_a_stopped_server_in_a_container_is_seen_and_what_it_did_is_written_down(daemon, command, tmp_path):
    running = subprocess.Popen(
        [*command, "only.arm=native", "server.stall_limit_s=5", "force.context=16384"],
        env=daemon, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in running.stderr:
        if "ready after" in line:
            break
    listed = subprocess.run(
        ["docker", "top", *containers(daemon), "-eo", "pid,comm"],
        env=daemon, check=True, capture_output=True, text=True,
    )  # fmt: skip
    (scheduler,) = (int(row.split()[0]) for row in listed.stdout.splitlines() if "sglang::sched" in row)
    psutil.Process(scheduler).suspend()
    said = running.communicate(timeout=300)[1]
    records, errors = read_all(tmp_path / "results")
    assert errors == []
    assert Outcome.STALLED in {r.outcome for r in records}, said
    stacks = list((tmp_path / "results" / "logs" / "servers").glob("*.stacks.txt"))
    assert len(stacks) == 1
    assert "sglang::sched" in stacks[0].read_text()
    assert containers(daemon) == []


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("server.image=nowhere:1", "server.image"),
        ("server.python=python9", "server.python"),
        ("server.container_arguments=[--unheard-of]", "container_arguments"),
    ],
)
def test_what_the_runtime_refuses_is_named(daemon, command, tmp_path, word, cause):
    kept = [given for given in command if given.partition("=")[0] != word.partition("=")[0]]
    done = subprocess.run(
        [*kept, "only.arm=native", word], env=daemon, check=False, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 1
    (record,), _ = read_all(tmp_path / "results")
    assert record.outcome == Outcome.SERVER_DIED
    assert cause in record.reason
    assert json.loads(record.model_dump_json())["requests"] == []
