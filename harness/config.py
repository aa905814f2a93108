"""Schema of the Hydra configuration; composed values become frozen points in `harness.compose`.

Hydra cannot merge into frozen dataclasses, so these are mutable and leave this package's edge at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

PROFILES = ("auto", "nsys", "torch", "none")


@dataclass
class ModelConfig:
    """A checkpoint and the server settings that belong to it."""

    name: str = MISSING
    # Local directory, Hugging Face id, or `package:tiny` for the shipped checkpoint.
    path: str = MISSING
    dtype: str = "bfloat16"
    # Longest context the checkpoint serves as it is, and the YaRN factor that extends it (None: none).
    native_context_tokens: int | None = None
    yarn_factor: float | None = None
    # F, the target's full-attention layers: the draft's share of the KV memory is 1 / (F + 1).
    full_attention_layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    trust_remote_code: bool = False
    # What `context`, `window` and `sink` mean where a run does not set them.
    default_context: int = 1_040_000
    default_window: int = 4032
    default_sink: int = 64
    server_arguments: list[str] = field(default_factory=list)


@dataclass
class HardwareConfig:
    """The machine a study runs on."""

    name: str = MISSING
    # cuda | cpu
    device: str = "cuda"
    gpus: int = 1
    # A word of the GPUs' product name; a server on others is refused, lest a record name the wrong GPU.
    gpu_name_contains: str = ""
    memory_gib: float | None = None
    # Peak memory bandwidth by the vendor's data sheet, for floors.
    bandwidth_gb_per_s: float | None = None
    # CPU only: threads a server computes with.
    threads: int | None = None
    mem_fraction_static: float | None = None
    mem_fraction_static_batch: float | None = None
    # Attention backend of the target.
    target_backend: str = MISSING
    # Attention backend of the draft by arm.
    draft_backend: dict[str, str] = field(default_factory=dict)
    server_arguments: list[str] = field(default_factory=list)


@dataclass
class ServerConfig:
    """How a server is started and watched."""

    # local | docker | enroot | url
    kind: str = "local"
    url: str | None = None
    image: str | None = None
    # Interpreter that has SGLang and this package; None: the harness's own.
    python: str | None = None
    # Of a server that is already running (kind=url): its log file here, for step times; None: replies only.
    log_path: str | None = None
    # Paths a container sees besides the checkpoint and the results, as host:container.
    mounts: list[str] = field(default_factory=list)
    # Further arguments of `docker run` or `srun`, each one word.
    container_arguments: list[str] = field(default_factory=list)
    port: int | None = None
    # None: 8192 on a GPU, 2048 on a CPU.
    chunked_prefill_tokens: int | None = None
    # KV budget in tokens; None: what the requests need on a CPU, the memory fraction on a GPU.
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    startup_timeout_s: float = 3600.0
    stall_limit_s: float = 900.0
    stop_timeout_s: float = 60.0
    extra_arguments: list[str] = field(default_factory=list)


@dataclass
class InputConfig:
    """A generator task and its parameters (`conf/input/`)."""

    task: str = MISSING
    params: dict[str, Any] = field(default_factory=dict)


@dataclass
class RunConfig:
    """One composed configuration."""

    model: ModelConfig = field(default_factory=ModelConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    input: InputConfig = field(default_factory=InputConfig)
    # dense | native | windowed | ring
    arm: str = "ring"
    # d = gamma + 1, the most tokens a step can emit; 1 for dense.
    depth: int = 7
    # W, the most recent keys the draft may read. None: the model's default, as for the next two.
    window: int | None = None
    # The first keys, which the draft may always read.
    sink: int | None = None
    # S, prompt tokens as the server counts them.
    context: int | None = None
    # B, copies of the prompt that decode together.
    batch: int = 1
    # Tensor parallelism: GPUs (on a CPU: processes) of one server.
    tp: int = 1
    # Precision of both KV pools: bfloat16 | fp8_e4m3 | float32 (CPU).
    kv_dtype: str = "bfloat16"
    # Most tokens of an output.
    max_new_tokens: int = 512
    # 1 is none.
    repetition_penalty: float = 1.15
    # 0 is greedy.
    temperature: float = 0.0
    # Go on to max_new_tokens whatever the model says.
    ignore_eos: bool = False
    # Run the draft's prefill only on tokens whose KV it can read later (windowed and ring).
    prune_draft_prefill: bool = False
    # None: what conf/hardware names for the arm.
    draft_backend: str | None = None
    # Memory of both KV pools together, alike for every arm; None: what the requests need on a CPU, the memory
    # fraction on a GPU.
    kv_budget_mib: int | None = None
    # What the server records besides the run: trace | decision | attention_mass; or what it is asked besides:
    # margins | draws.
    probe: str | None = None
    # What takes a trace's kernel times: auto | nsys | torch | none (auto: nsys on a GPU that has it).
    profile: str = "auto"
    # Batches of one sweep share the prefill of the largest (see docs/sweeps.md).
    share_prefill: bool = False
    # Of the prompt; a point of another seed is another point.
    seed: int = 0
    # Timed runs of each point.
    repeats: int = 1
    # Which finished points are measured again: none | failed | all.
    retry: str = "failed"
    # Where records, plans and logs go.
    results: str = "results"
    # Set by conf/experiment/: which points a study needs (see docs/sweeps.md).
    experiment: dict[str, Any] | None = None
    # With an experiment: keep only points that match, and set values for all of them.
    only: dict[str, Any] = field(default_factory=dict)
    force: dict[str, Any] = field(default_factory=dict)
    # Directory that holds checkpoints, each by model.name, its file of conf/model/ or its hub id (see
    # docs/sweeps.md); None: where conf/model says.
    checkpoints: str | None = None
    # Parameters of single tasks of an experiment, such as {longbench_code_qa: {data: ...}}.
    input_params: dict[str, Any] = field(default_factory=dict)
    # Set for the jobs of a multirun: the plan file and the boot that this job runs.
    plan: str | None = None
    boot: str | None = None


def register() -> None:
    """Put the schema into Hydra's store; safe to call more than once."""
    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig)
    store.store(group="model", name="model_schema", node=ModelConfig)
    store.store(group="hardware", name="hardware_schema", node=HardwareConfig)
    store.store(group="server", name="server_schema", node=ServerConfig)
    store.store(group="input", name="input_schema", node=InputConfig)


def settings(kind: type[Any] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and type of every setting; a group of settings comes before its members."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        hint = hints[item.name]
        yield prefix + item.name, hint
        if is_dataclass(hint):
            yield from settings(hint, f"{prefix}{item.name}.")  # type: ignore[arg-type]
