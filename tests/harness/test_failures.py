"""First causes of failed servers: each log tail has its own cause, whatever messengers stand around it."""

from __future__ import annotations

import pytest

from harness.records import Outcome
from harness.server.failures import classify

STAMP = "[2026-08-23 10:00:00 TP0] "
MESSENGER = "Received sigquit from a child process. It usually means the child failed."
SERVING = "SIGQUIT received. signum=3, frame=None. It usually means one child failed."


def traceback(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "a.py", line 3, in run\n    work()\n{error}'


CASES = [
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: mem_fraction_static=0.70",
        "start", "kv_pool_no_room", Outcome.OUT_OF_MEMORY_AT_START,
    ),
    (
        "max_total_tokens=65536 is larger than the profiled value -1200. Use the profiled value instead.",
        "start", "kv_pool_no_room", Outcome.OUT_OF_MEMORY_AT_START,
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "run", "cuda_oom", Outcome.OUT_OF_MEMORY_AT_RUN,
    ),
    (
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "start", "cuda_oom", Outcome.OUT_OF_MEMORY_AT_START,
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        "run", "host_out_of_memory", Outcome.OUT_OF_MEMORY_AT_RUN,
    ),
    (
        "/usr/bin/python3: Error while finding module specification for 'sglang.launch_server' "
        "(ModuleNotFoundError: No module named 'sglang')",
        "start", "sglang_missing", Outcome.SERVER_DIED,
    ),
    (
        "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
        "running?",
        "start", "container_runtime_unreachable", Outcome.SERVER_DIED,
    ),
    (
        "cannot start docker: No such file or directory",
        "start", "container_runtime_missing", Outcome.SERVER_DIED,
    ),
    (
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]',
        "start", "container_without_gpu", Outcome.SERVER_DIED,
    ),
    (
        "Unable to find image 'nowhere:1' locally\ndocker: Error response from daemon: pull access denied",
        "start", "no_container_image", Outcome.SERVER_DIED,
    ),
    (
        "srun: unrecognized option '--container-image=x'\nTry \"srun --help\" for more information",
        "start", "no_pyxis", Outcome.SERVER_DIED,
    ),
    (
        "srun: error: _establish_config_source: failed to fetch config\n"
        "srun: fatal: Could not establish a configuration source",
        "start", "slurm_refused", Outcome.SERVER_DIED,
    ),
    (
        "[FATAL tini (7)] exec python3 failed: No such file or directory",
        "start", "no_python_in_image", Outcome.SERVER_DIED,
    ),
    (
        'docker: Error response from daemon: invalid mount config for type "bind": bind source path does '
        "not exist: /models",
        "start", "container_refused", Outcome.SERVER_DIED,
    ),
    ("unknown flag: --foo", "start", "container_refused", Outcome.SERVER_DIED),
    ("Port is already in use. dist_init_port=20000", "start", "port_in_use", Outcome.PORT_IN_USE),
    (
        "ERROR: [Errno 98] error while attempting to bind on ('127.0.0.1', 1): address already in use",
        "start", "port_in_use", Outcome.PORT_IN_USE,
    ),
    (
        "[TP1] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "run", "watchdog_timeout", Outcome.STALLED,
    ),
    (
        "RuntimeError: The size of tensor a (64) must match the size of tensor b (128) at dimension 1",
        "start", "weight_shape_mismatch", Outcome.SERVER_DIED,
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/config.json'",
        "start", "missing_file", Outcome.SERVER_DIED,
    ),
    (
        "ValueError: The checkpoint you are trying to load has model type `foo` but Transformers does not "
        "recognize this architecture.",
        "start", "unknown_model_type", Outcome.SERVER_DIED,
    ),
    (
        "windowed-mtp: windowed-mtp works inside SGLang 0.5.23, and this is 0.5.22: install it",
        "start", "plugin_refused", Outcome.INVALID,
    ),
    (
        "harness.errors.ConfigError: windowed-mtp mode=ring cannot start: page size 16.",
        "start", "plugin_refused", Outcome.INVALID,
    ),
    (
        "launch_server.py: error: unrecognized arguments: --no-such-flag",
        "start", "bad_arguments", Outcome.SERVER_DIED,
    ),
    ("OSError: [Errno 28] No space left on device", "run", "disk_full", Outcome.SERVER_DIED),
    (
        "RuntimeError: Rank 1 scheduler died during initialization (exit code: -9). If exit code is -9 (",
        "start", "host_oom_or_killed", Outcome.SERVER_DIED,
    ),
    (
        "Subprocess scheduler_0 (pid=12) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        "run", "host_oom_or_killed", Outcome.SERVER_DIED,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "phase", "name", "kind"), CASES)
@pytest.mark.parametrize("around", ["bare", "messengers", "traceback"])
def test_cause_is_found_whatever_stands_around_it(line, phase, name, kind, around):
    tail = {
        "bare": line,
        "messengers": f"{STAMP}server_args=ServerArgs(watchdog_timeout=300)\n{line}\n{MESSENGER}\n{SERVING}",
        "traceback": f"{STAMP}Scheduler hit an exception: {traceback(line)}\n\n{MESSENGER}",
    }[around]
    if around == "traceback" and "exit code" in line:
        tail = f"{line}\n{MESSENGER}"  # written by the parent, never by the scheduler that died
    failure = classify(tail, None, phase)
    assert (failure.name, failure.kind) == (name, kind)
    assert MESSENGER not in failure.cause
    assert failure.advice


def test_minimum_fraction_is_read_and_turned_into_advice():
    line = (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.88. "
        "Raise --mem-fraction-static above 0.934 (minimum viable = 1 - available/pre = 0.9335). If using"
    )
    failure = classify(line, 1, "start")
    assert failure.minimum_fraction == pytest.approx(0.9335)
    assert "0.9335" in failure.advice
    assert "Raise" in failure.advice
    hopeless = classify(line.replace("0.9335", "0.9912"), 1, "start")
    assert "more GPUs" in hopeless.advice


def test_advice_at_start_and_while_serving_is_opposite():
    start = classify(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", 1, "start"
    )
    run = classify("torch.OutOfMemoryError: CUDA out of memory.", None, "run")
    assert start.advice.startswith("Raise server.mem_fraction_static")
    assert run.advice.startswith("Lower server.mem_fraction_static")


def test_out_of_memory_at_start_depends_on_whether_a_pool_was_made():
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    pool = (
        STAMP + "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 5, K size: 1.00 GB, V size: 1.00 GB"
    )
    assert "before any KV pool" in classify(oom, 1, "start").advice
    assert classify(f"{pool}\n{oom}", 1, "start").advice.startswith("Lower")


def test_larger_than_profiled_with_room_is_no_cause():
    line = "max_total_tokens=131072 is larger than the profiled value 90000. Use the profiled value instead."
    assert classify(f"{line}\nValueError: x", 1, "start").name != "kv_pool_no_room"


def test_first_traceback_wins_over_what_other_ranks_say_later():
    tail = "\n".join(
        [
            f"[2026-08-23 10:00:00 TP1] Scheduler hit an exception: {traceback('KeyError: alpha')}",
            f"[2026-08-23 10:00:01 TP0] Scheduler hit an exception: {traceback('RuntimeError: beta')}",
            MESSENGER,
        ]
    )
    failure = classify(tail, 1, "run")
    assert "KeyError: alpha" in failure.cause
    assert "beta" not in failure.cause


def test_a_closed_connection_is_not_the_cause():
    tail = "\n".join(
        [
            f"[2026-08-23 10:00:00 TP0] Scheduler hit an exception: {traceback('EOFError')}",
            f"[2026-08-23 10:00:01 TP1] Scheduler hit an exception: {traceback('ValueError: the real one')}",
            "Subprocess scheduler_1 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        ]
    )
    assert "the real one" in classify(tail, None, "run").cause


def test_chained_tracebacks_name_the_first_and_the_last():
    tail = (
        traceback("KeyError: 'layers'")
        + "\n\nThe above exception was the direct cause of the following exception:\n\n"
        + traceback("ValueError: cannot build the model")
    )
    failure = classify(tail, 1, "start")
    assert "KeyError: 'layers'" in failure.cause
    assert "cannot build the model" in failure.cause


def test_known_cause_inside_a_chain_types_it():
    tail = (
        traceback("KeyError: 'foo'")
        + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback("ValueError: model type `foo` but Transformers does not recognize this architecture.")
    )
    assert classify(f"{STAMP}Scheduler hit an exception: {tail}", 1, "start").name == "unknown_model_type"


def test_what_a_server_survives_is_no_cause():
    tail = "\n".join(
        [
            f"{STAMP}Ignore import error when loading x: libfoo.so: cannot open shared object file",
            f"{STAMP}windowed-mtp: mode=ring slots=4096",
            f"ERROR: Exception in ASGI application\n{traceback('FileNotFoundError: a.png')}",
            f"{STAMP}Scheduler hit an exception: {traceback('AssertionError: broken')}",
        ]
    )
    assert "AssertionError: broken" in classify(tail, 1, "run").cause


def test_main_process_exception_without_a_scheduler():
    failure = classify(traceback("ValueError: tp_size must divide the heads"), 1, "start")
    assert failure.cause == "ValueError: tp_size must divide the heads."
    assert failure.kind is Outcome.SERVER_DIED


def test_parent_traceback_that_only_passes_on_is_a_messenger():
    tail = traceback(
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1). If exit code is -9"
    )
    failure = classify(tail, 1, "start")
    assert failure.name == "unknown_child_failure"
    assert "search further up" in failure.advice


@pytest.mark.parametrize(
    ("code", "name", "part"),
    [
        (-9, "host_oom_or_killed", "SIGKILL"),
        (137, "host_oom_or_killed", "SIGKILL"),
        (-11, "signal", "SIGSEGV"),
        (139, "signal", "SIGSEGV"),
        (0, "ended", "0"),
        (3, "exit_status", "3"),
        (None, "unknown", "still runs"),
    ],
)
def test_exit_status_speaks_where_the_log_does_not(code, name, part):
    failure = classify("", code, "run")
    assert failure.name == name
    assert part in failure.cause


def test_long_and_torn_logs_do_not_break_it():
    assert (
        classify("\x00\x01 Traceback (most recent call last):\n" + "  x\n" * 5000, 1, "run").name
        == "exit_status"
    )
    assert len(classify("ValueError: " + "x" * 10_000 + "\n", 1, "run").cause) < 600


@pytest.mark.parametrize(
    "quoted", ["raise FileNotFoundError(errno.ENOENT,", 'raise ValueError("CUDA out of memory")']
)
def test_source_text_in_a_traceback_is_no_cause(quoted):
    log = traceback("KeyError: 3").replace("work()", f"{quoted}\n    ^^^^^")
    found = classify(log, 1, "start")
    assert found.name == "exception"
    assert "KeyError: 3" in found.cause


def test_a_cause_in_an_exception_group_is_found():
    log = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 3, in run\n  | ExceptionGroup: two (1 sub-exception)\n'
        "    | Traceback (most recent call last):\n"
        "    | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n"
    )
    assert classify(log, 1, "run").name == "cuda_oom"


def test_a_failed_step_is_a_messenger():
    log = "srun: error: node1: task 0: Exited with exit code 1\n" + traceback("KeyError: 3")
    assert "KeyError: 3" in classify(log, 1, "start").cause
