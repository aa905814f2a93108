"""What known causes look like in the log of SGLang 0.5.23 and of the libraries under it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.records import Outcome

PREFIX = re.compile(
    r"^\[\d{4}-\d\d-\d\d[^\]]*\]\s*(?:(?:CRITICAL|ERROR|WARNING|INFO)\s*:?\s+)?|^\[TP\d+[^\]]*\]\s*"
)
"""Time stamp and rank before a log line."""

MESSENGER = re.compile(
    r"Received sigquit from a child|SIGQUIT received|Triggering SIGQUIT"
    r"|It usually means (?:the|one) child failed|scheduler died during initialization"
    r"|Subprocess \S+ \(pid=\d+\) crashed|^srun: error: \S+: tasks? \S+: "
    r"|Initialization failed\. Please see the error messages above"
)
"""Lines that only pass on that some other process failed."""

ENDING = re.compile(
    rb"Subprocess \S+ \(pid=\d+\) crashed|Received sigquit from a child|SIGQUIT received\. signum"
)
"""Lines after which a server only takes itself down, which may take it minutes."""

SECONDARY = re.compile(
    r"^(?:[\w.]*\.)?(?:EOFError|BrokenPipeError|Connection(?:Reset|Refused|Aborted)?Error|KeyboardInterrupt"
    r"|CancelledError|DistStoreError|IncompleteReadError)\b"
    r"|Connection closed by peer|connection was (?:reset|closed)|Broken pipe|recvValue failed"
    r"|remote process exited or there was a network error"
)
"""Exceptions of processes whose peer went away."""

KILLED = re.compile(
    r"exit code:? ?-9\b|SIGKILL received|signal 9\b|oom-kill|Out of memory: Killed process|^Killed$"
)
"""Evidence of a process killed from outside. The text explaining exit code -9 stands in every such line."""

_FRACTIONS = (
    re.compile(r"minimum viable[^)]*=\s*([01]?\.\d+|1)"),
    re.compile(r"mem[-_]fraction[-_]static above ([01]?\.\d+|1)"),
)


@dataclass(frozen=True)
class Cause:
    """A cause and its advice."""

    name: str
    kind: Outcome
    advice: str

    def advice_for(self, fraction: float | None) -> str:
        """The advice, with the smallest memory fraction that the log names."""
        if fraction is None:
            return self.advice
        if fraction >= 0.98:
            return (
                f"The weights alone need a fraction of {fraction:.4f}: use more GPUs or a smaller checkpoint."
            )
        return f"{self.advice} The smallest fraction that can start here is just above {fraction:.4f}."


def minimum_fraction(line: str) -> float | None:
    """The smallest workable `mem_fraction_static` that a line names."""
    found = next((match for pattern in _FRACTIONS if (match := pattern.search(line))), None)
    return float(found.group(1)) if found else None


_RAISE_FRACTION = (
    "Raise server.mem_fraction_static, or use more GPUs: the weights leave no room for KV "
    "(lowering it makes this worse)."
)
_LOWER_FRACTION = (
    "Lower server.mem_fraction_static: the KV pool leaves too little for activations and graphs; or lower "
    "server.chunked_prefill_tokens or the batch."
)
_WEIGHTS_TOO_LARGE = (
    "The weights did not fit before any KV pool was made: free the GPU of other tenants "
    "(python -m harness.doctor), raise tp, or use a smaller checkpoint."
)

_GPU_OOM = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP) out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure \d+ 'out of memory'|CUDA_ERROR_OUT_OF_MEMORY"
)
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc|^MemoryError\b|Cannot allocate memory"
)

_PLAIN: tuple[tuple[re.Pattern[str], Cause], ...] = tuple(
    (re.compile(pattern), Cause(name, kind, advice))
    for pattern, name, kind, advice in (
        (
            r"Not enough memory\. Please try to increase --mem-fraction-static"
            r"|leave no GPU memory for the KV cache|larger than the profiled value (?:-|0\.)"
            r"|leaves no room for the full",
            "kv_pool_no_room", Outcome.OUT_OF_MEMORY_AT_START, _RAISE_FRACTION,
        ),
        (
            r"Not enough GPU memory for hybrid|state cache is too small to serve",
            "state_pool_no_room", Outcome.OUT_OF_MEMORY_AT_START,
            "Lower the batch (--max-running-requests) or the depth, or raise server.mem_fraction_static or "
            "--mamba-full-memory-ratio.",
        ),
        (
            r"No module named '?sglang(?:\.launch_server)?(?:['\s)]|$)",
            "sglang_missing", Outcome.SERVER_DIED,
            "SGLang is not installed for the Python that starts the server: `pip install sglang==0.5.23` "
            "there (in a clone: make setup), or use server=docker or server=url.",
        ),
        (
            r"Cannot connect to the Docker daemon|failed to connect to the docker API"
            r"|permission denied while trying to connect to the Docker daemon",
            "container_runtime_unreachable", Outcome.SERVER_DIED,
            "Start the Docker daemon or let this user reach it (group docker, DOCKER_HOST), or "
            "use server=local.",
        ),
        (
            r"^cannot start (?:docker|srun): ",
            "container_runtime_missing", Outcome.SERVER_DIED,
            "Install it on this node, or use server=local.",
        ),
        (
            r"could not select device driver|nvidia-container-cli: |unresolvable CDI devices",
            "container_without_gpu", Outcome.SERVER_DIED,
            "The container runtime cannot pass on GPUs: install the NVIDIA container toolkit and register it "
            "(nvidia-ctk runtime configure), or use server=local.",
        ),
        (
            r"Unable to find image|pull access denied|No such image|failed to import docker image"
            r"|pyxis: couldn't start container|manifest (?:for \S+ )?(?:not found|unknown)",
            "no_container_image", Outcome.SERVER_DIED,
            "Build or pull the image under the name in server.image first; it needs SGLang 0.5.23 and this "
            "package.",
        ),
        (
            r"srun: unrecognized option '--container|srun: (?:error: )?.*unrecognized option.*container",
            "no_pyxis", Outcome.SERVER_DIED,
            "This SLURM has no pyxis plugin, which server=enroot needs: ask its administrator, or use "
            "server=local.",
        ),
        (
            r"^srun: fatal: |^srun: error: (?:Unable to|Invalid|\w+: failed)",
            "slurm_refused", Outcome.SERVER_DIED,
            "server=enroot runs as a SLURM step: start the harness in an allocation (salloc, sbatch or "
            "hydra/launcher=slurm) and look at `sinfo`.",
        ),
        (
            r"executable file not found in \$PATH|\[FATAL tini \(\d+\)\] exec \S+ failed",
            "no_python_in_image", Outcome.SERVER_DIED,
            "The image has no such Python: name the one that has SGLang by server.python=...",
        ),
        (
            r"^docker: (?:Error response from daemon|invalid reference format)|^unknown flag: "
            r"|^unknown shorthand flag: |OCI runtime (?:create|exec) failed",
            "container_refused", Outcome.SERVER_DIED,
            "The container runtime refused the command: check server.image, server.mounts and "
            "server.container_arguments.",
        ),
        (
            r"Port is already in use|[Aa]ddress already in use|EADDRINUSE",
            "port_in_use", Outcome.PORT_IN_USE,
            "Leave server.port unset for a free port at each start, or stop the program that holds it.",
        ),
        (
            r"atchdog timeout \(|atchdog caught collective operation timeout",
            "watchdog_timeout", Outcome.STALLED,
            "A step took longer than the server's own limit: see the stack dump above in the log; raise "
            "--watchdog-timeout if the step was merely slow.",
        ),
        (
            r"The size of tensor a \(\d+\) must match the size of tensor b|size mismatch for "
            r"|[Ss]hape mismatch"
            r"|Attempted to load weight \(|Tensor size mismatch|AssertionError: .*loaded_weight",
            "weight_shape_mismatch", Outcome.SERVER_DIED,
            "The weights do not fit the config: the checkpoint's files do not belong together, or this "
            "quantisation or tp is not supported for it.",
        ),
        (
            r"No space left on device|Disk quota exceeded",
            "disk_full", Outcome.SERVER_DIED, "Free space on the disk, in /tmp or in /dev/shm.",
        ),
        (
            r"Bus error|unable to (?:mmap|open) shared memory|/dev/shm.*(?:too small|exhausted)",
            "shared_memory_full", Outcome.SERVER_DIED, "Enlarge /dev/shm (docker run --shm-size 32g).",
        ),
        (
            r"Transformers does not recognize this architecture|Unrecognized (?:model|configuration class)"
            r"|Model architectures .* are not supported",
            "unknown_model_type", Outcome.SERVER_DIED,
            "This SGLang cannot load the model: check architectures and model_type in its config.json, and "
            "whether an import error above in the log removed the model.",
        ),
        (
            r"gated repo|401 Client Error|403 Client Error|Access to model .* is restricted",
            "no_access", Outcome.SERVER_DIED, "Log in to the hub (hf auth login) or give a local directory.",
        ),
        (
            r"FileNotFoundError|No such file or directory|does not appear to have a file named"
            r"|is not a local folder and is not a valid model identifier|Cannot find any model weights"
            r"|cannot open shared object file",
            "missing_file", Outcome.SERVER_DIED, "Finish the download or installation, or fix the path.",
        ),
        (
            r"no draft weights|draft model has no weights|MTP weights (?:are )?(?:missing|not found)",
            "no_draft_weights", Outcome.NO_DRAFT_WEIGHTS, "Use a copy of the checkpoint with MTP weights.",
        ),
        (
            r"error: (?:unrecognized arguments|argument |the following arguments are|ambiguous option)",
            "bad_arguments", Outcome.SERVER_DIED,
            "The installed SGLang does not know this argument: check extra_arguments and the SGLang version.",
        ),
        (
            r"an illegal memory access|device-side assert|CUDA error: unspecified launch failure|\bXid\b",
            "gpu_fault", Outcome.SERVER_DIED,
            "A kernel failed: run once with CUDA_LAUNCH_BLOCKING=1 to see which; look for Xid in `dmesg`.",
        ),
        (
            r"no kernel image is available|driver version is insufficient|CUDA driver .* too old"
            r"|Found no NVIDIA driver|No CUDA GPUs are available",
            "gpu_unusable", Outcome.SERVER_DIED,
            "Driver, CUDA build and GPU do not go together: python -m harness.doctor.",
        ),
        (
            r"NCCL error|ncclSystemError|ncclUnhandledCudaError",
            "nccl_error", Outcome.SERVER_DIED,
            "The GPUs cannot talk to each other: run with NCCL_DEBUG=INFO, check /dev/shm and peer access.",
        ),
        (
            r"Fatal Python error: (?:Segmentation fault|Aborted)|segfault at",
            "crash_in_native_code", Outcome.SERVER_DIED,
            "A compiled extension crashed; the Python stack below that line in the log shows which.",
        ),
    )
)  # fmt: skip

_NOT_IN_LOG_LINES = frozenset({"missing_file", "no_access", "unknown_model_type", "bad_arguments"})
_REFUSAL = re.compile(r"^windowed-mtp(?:\b|:)|^(?:harness\.errors\.)?ConfigError: ")
_REFUSED = Cause(
    "plugin_refused",
    Outcome.INVALID,
    "The windowed-mtp plugin refused this server: change the settings that it names.",
)


def known_cause(line: str, phase: str, pool_made: bool) -> Cause | None:
    """The cause that a log line names, or None.

    Args:
        phase: `start` or `run`.
        pool_made: whether a KV pool had been allocated before this line.
    """
    # The plugin's ordinary lines carry a time stamp; what ends a process is printed bare.
    if _REFUSAL.search(line):
        return _REFUSED
    text = PREFIX.sub("", line)
    if _GPU_OOM.search(text):
        return _out_of_memory(
            "cuda_oom", phase, _LOWER_FRACTION if pool_made or phase == "run" else _WEIGHTS_TOO_LARGE
        )
    if _HOST_OOM.search(text):
        return _out_of_memory(
            "host_out_of_memory", phase,
            "The host has too little memory: lower the context, the batch or server.max_total_tokens.",
        )  # fmt: skip
    if KILLED.search(text) or MESSENGER.search(text):
        return None
    cause = next((cause for pattern, cause in _PLAIN if pattern.search(text)), None)
    # A running server reports missing optional files and caches in ordinary log lines and goes on.
    if cause is not None and cause.name in _NOT_IN_LOG_LINES and text != line:
        return None
    return cause


def _out_of_memory(name: str, phase: str, advice: str) -> Cause:
    kind = Outcome.OUT_OF_MEMORY_AT_RUN if phase == "run" else Outcome.OUT_OF_MEMORY_AT_START
    return Cause(name, kind, advice)
