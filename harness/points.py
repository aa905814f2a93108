"""One measured cell and its content-hash key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.errors import ConfigError

Arm = Literal["dense", "native", "windowed", "ring"]
ARMS: tuple[Arm, ...] = ("dense", "native", "windowed", "ring")
SPECULATIVE_ARMS = frozenset({"native", "windowed", "ring"})
WINDOWED_ARMS = frozenset({"windowed", "ring"})
CLIENT_PROBES = frozenset({"margins", "draws"})
"""Probes that only ask more of a server; the others are switched on inside it, when it starts."""


MOST_NAME_CHARACTERS = 100


def _check_name(name: str) -> str:
    """Names stand in tables, CSV files, LaTeX and terminals, and may become part of a file's name."""
    if len(name) > MOST_NAME_CHARACTERS:
        raise ValueError(
            f"the name {name[:40]}... has {len(name)} characters: give one of at most {MOST_NAME_CHARACTERS}"
        )
    if not name.isprintable() or not name[:1].isalnum():
        raise ValueError(f"{name!r} is no name: begin with a letter or digit, on one line")
    return name


Name = Annotated[str, AfterValidator(_check_name)]


class Point(BaseModel):
    """What defines one measured cell; equal points are the same measurement.

    Lengths are in tokens. `depth` is d = gamma + 1 (`num_draft_tokens`), 1 for the dense arm.
    `window_tokens`/`sink_tokens` are None where the draft reads everything.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Name
    checkpoint: str = Field(description="hash of the checkpoint's config and weight index, not its path")
    hardware: Name
    arm: Arm
    depth: int = Field(ge=1, le=64)
    window_tokens: int | None = None
    sink_tokens: int | None = None
    batch: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    context_tokens: int = Field(ge=1)
    max_new_tokens: int = Field(default=512, ge=1)
    task: Name
    task_params: dict[str, Any] = Field(default_factory=dict)
    dtype: Name = "bfloat16"
    kv_dtype: Name = "bfloat16"
    draft_backend: str = Field(description="attention backend of the draft; '-' for the dense arm")
    repetition_penalty: float = Field(default=1.15, gt=0, le=2)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    ignore_eos: bool = False
    prune_draft_prefill: bool = False
    probe: str | None = None
    shared_prefill: bool = Field(
        default=False,
        description="measured while a larger batch of the same sweep ran down, not on a prefill of its own",
    )
    seed: int = Field(default=0, ge=0)
    repeat: int = Field(default=0, ge=0)
    kv_budget_mib: int | None = Field(
        default=None, ge=1, description="memory of both KV pools together; None: as the server sizes them"
    )

    @model_validator(mode="after")
    def _sensible(self) -> Point:
        windowed = self.arm in WINDOWED_ARMS
        if windowed and self.window_tokens is None:
            raise ValueError(f"arm={self.arm} needs window_tokens (the paper's point is 4032 + 64)")
        if not windowed and self.window_tokens is not None:
            raise ValueError(f"arm={self.arm} reads the full context: leave window_tokens out")
        if windowed:
            window, sink = self.window_tokens or 0, self.sink_tokens or 0
            if window < self.depth:
                raise ValueError(f"window_tokens={window} is smaller than depth={self.depth}")
            if not 0 <= sink <= window:
                raise ValueError(f"sink_tokens={sink} must lie between 0 and window_tokens={window}")
        if self.arm == "dense" and self.depth != 1:
            raise ValueError("arm=dense does not speculate: depth must be 1")
        if self.arm != "dense" and self.depth < 2:
            raise ValueError(f"arm={self.arm} needs depth >= 2 (one draft forward), got {self.depth}")
        try:
            self.canonical()
        except TypeError as error:  # integers beyond 64 bits, text that is no Unicode
            raise ValueError(f"a value cannot be stored in a record ({error})") from error
        return self

    def canonical(self) -> bytes:
        """The JSON of all fields that are set, always the same bytes."""
        fields = self.model_dump(mode="json")
        # Fields that came later, unset: records from before them keep their keys.
        if fields["kv_budget_mib"] is None:
            del fields["kv_budget_mib"]
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

    @property
    def gamma(self) -> int:
        """Draft forward passes per step."""
        return self.depth - 1

    @property
    def key(self) -> str:
        """16 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.canonical()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A short name for logs and progress lines."""
        window = f" W={self.window_tokens}+{self.sink_tokens}" if self.window_tokens is not None else ""
        size = f"S={self.context_tokens} B={self.batch}"
        return f"{self.model} {self.arm} d={self.depth}{window} {size} {self.task}"


def make_point(values: Mapping[str, Any]) -> Point:
    """Build a point; a combination that makes no sense raises ConfigError with its reason."""
    try:
        return Point.model_validate(dict(values))
    except ValueError as error:
        reasons = getattr(error, "errors", None)
        text = (
            "; ".join(
                (".".join(map(str, e["loc"])) + ": " if e["loc"] else "")
                + str(e["msg"]).removeprefix("Value error, ")
                for e in reasons()
            )
            if callable(reasons)
            else str(error)
        )
        raise ConfigError(f"this point makes no sense: {text}") from error
