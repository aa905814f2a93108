"""What probes and traces store in `record.extras`: the schema of each key, checked when read.

Keys: `phases` and `profiled_phases` (table 7), `kernels` and `kernel_trace` (table 8), `decision_probe`
(table 11), `attention_mass` (table 12), `output_margins` (a list of floats: top-1 minus top-2 logit at each
output token), `draws` (sampled tokens by position) and `penalty` (what the server did with a repetition
penalty).
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import RecordError
from harness.records import Record


class _Extra(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Phases(_Extra):
    """Mean wall time of the phases of one decode iteration: what is in none of the three is unattributed."""

    source: str = Field(description="nsys | torch | engine: what took the times")
    clock: str = Field(default="", description="of source engine: host | cuda_events")
    iterations: int = Field(ge=1, description="steady decode iterations averaged over")
    verify_base_ms: float = Field(ge=0, description="the target's verify forward")
    verify_overhead_ms: float = Field(ge=0, description="tree build, slots and indices, sampling, commit")
    draft_ms: float = Field(ge=0, description="draft forwards, draft extend and the draft's index build")
    draft_extend_ms: float | None = Field(default=None, ge=0, description="part of draft_ms: the extend")
    draft_index_ms: float | None = Field(default=None, ge=0, description="part of draft_ms: index builds")
    draft_forward_ms: list[float] = Field(
        default_factory=list, description="each draft decode forward; one for all that a CUDA graph holds"
    )
    unattributed_ms: float = Field(default=0.0, description="the scheduler between iterations, and the rest")
    iteration_ms: float = Field(ge=0, description="from the beginning of one iteration to that of the next")
    parts_ms: dict[str, float] = Field(default_factory=dict, description="by part, see harness.phases")
    accepted_mean: float | None = Field(default=None, ge=0, description="drafts accepted a step and request")
    context_tokens_mean: float | None = Field(default=None, ge=0)

    @property
    def overhead_percent(self) -> float:
        """What speculation adds on top of the bare verify: (draft + overhead) / base x 100."""
        added = self.draft_ms + self.verify_overhead_ms
        return 100 * added / self.verify_base_ms if self.verify_base_ms else float("nan")


class Kernel(_Extra):
    """One kernel (or operator, without a GPU), averaged over the traced iterations."""

    name: str
    kind: str = Field(default="", description="what it does, see analysis.traces.classes")
    phase: str = Field(description="draft | draft_extend | verify | overhead | other")
    calls_per_iteration: float = Field(ge=0)
    us_per_iteration: float = Field(ge=0, description="time busy, microseconds")


class KernelTrace(_Extra):
    """The capture that `kernels` come from, means of an iteration in microseconds."""

    source: str = Field(description="nsys | torch")
    file: str = ""
    problem: str = Field(default="", description="why there are no kernels; empty where there are")
    iterations: int = Field(default=0, ge=0, description="0: none marked, the times are the whole capture's")
    attribution: str = ""
    busy_us: dict[str, float] = Field(default_factory=dict, description="by phase; overlaps count once")
    busy_us_all: float = Field(default=0.0, ge=0)
    unattributed_us: float = Field(default=0.0, ge=0, description="busy with what no part launched")
    classes_us: dict[str, float] = Field(default_factory=dict, description="of the draft, by kernel class")
    missing: list[str] = Field(default_factory=list, description="what the capture lacks")
    warnings: list[str] = Field(default_factory=list)


class WindowDecision(_Extra):
    """The draft's first choices with one window's reads against its full reads. Margins are logits."""

    window_tokens: int | None = Field(default=None, ge=1, description="W")
    sink_tokens: int | None = Field(default=None, ge=0)
    agreeing_steps: int = Field(ge=0, description="steps whose top-1 proposal is the same")
    margin_at_flip: float | None = Field(
        default=None, description="top-1 minus top-2 of the full read, mean over steps that disagree"
    )
    router_jaccard: float | None = Field(default=None, description="overlap of chosen experts, MoE heads")


class PositionDecision(_Extra):
    """The same at one place of the draft chain; 1 is the proposal of the extend after a verify."""

    position: int = Field(ge=1)
    steps: int = Field(ge=1)
    agreeing_steps: int = Field(ge=0)


class DecisionProbe(WindowDecision):
    """The draft run twice on one hidden state: full read against windowed read, at the operating window.

    A step is one draft forward's proposal for one request.
    """

    steps: int = Field(ge=1)
    margin_mean: float | None = Field(default=None, description="top-1 minus top-2, full read, all steps")
    control_agreeing_steps: int | None = Field(
        default=None, ge=0, description="steps whose repetition with all reads proposes the same"
    )
    windows: list[WindowDecision] = Field(default_factory=list, description="the operating window first")
    by_position: list[PositionDecision] = Field(default_factory=list)
    margin_edges_logits: list[float] = Field(
        default_factory=list, description="lower ends of the bins, the last one open"
    )
    margin_counts: list[int] = Field(default_factory=list, description="all steps by margin")
    margin_counts_at_flip: list[int] = Field(default_factory=list, description="those that disagree")


class WindowMass(_Extra):
    """One window's share of the attention. The tail is what it leaves out."""

    window_tokens: int | None = Field(default=None, ge=1, description="W")
    sink_tokens: int | None = Field(default=None, ge=0)
    mass: float = Field(ge=0, le=1.0001, description="softmax mass on sink and window")
    perturbation: float = Field(ge=0, description="|o_full - o_window| / |o_full|, mean of the heads'")
    perturbation_joint: float = Field(ge=0, description="the same of all heads' read-outs as one vector")
    tail_share: float = Field(ge=0, description="|o_tail| / |o_full|, mean of the heads'")
    tail_share_joint: float = Field(ge=0)
    tail_keys: float | None = Field(default=None, ge=0)
    tail_entropy_nats: float | None = Field(default=None, description="of the shares within the tail")
    tail_participation_keys: float | None = Field(
        default=None, ge=0, description="1 / sum of squared shares: keys that the tail's mass is spread over"
    )


class AttentionMass(_Extra):
    """Shares of the draft's attention on the native draft, means over steps, heads and layers."""

    steps: int = Field(ge=1)
    layers: int = Field(default=1, ge=1)
    window_tokens: int | None = Field(default=None, ge=1)
    sink_tokens: int | None = Field(default=None, ge=0)
    in_window_mass: float = Field(ge=0, le=1.0001, description="softmax mass on sink and window")
    perturbation: float = Field(ge=0, description="|o_full - o_window| / |o_full|")
    tail_share: float = Field(ge=0, description="|o_tail| / |o_full|, the part read outside the window")
    residual_share: float | None = Field(default=None, ge=0, description="|W_o o| / |h|")
    kernel_difference: float | None = Field(
        default=None, ge=0, description="|o - o'| / |o|, o' the attention kernel's own answer"
    )
    windows: list[WindowMass] = Field(default_factory=list, description="the operating window first")
    sink_mass: float | None = Field(default=None, ge=0, description="mass on the first sink_tokens keys")
    distance_mass: list[float] = Field(
        default_factory=list, description="mass at distance 0, 1, 2-3, 4-7, ... from the query, sink left out"
    )


class Draws(_Extra):
    """Sampled continuations of one prompt, counted by output position."""

    requests: int = Field(ge=1)
    temperature: float = Field(gt=0)
    verify_steps: int = Field(ge=0, description="over all of them; 0 without speculation")
    accepted_drafts: int = Field(ge=0)
    positions: list[dict[str, int]] = Field(description="token id -> count, for each output position")


class PenaltyAudit(_Extra):
    """What the server did with the repetition penalty it was given, by log probabilities."""

    state: str = Field(description="honoured | late | weakened | ignored | not exercised | unknown")
    repetition_penalty: float
    reason: str = Field(default="", description="why it is unknown")
    tokens: int = Field(default=0, ge=0, description="output tokens that were looked at")
    accepted_drafts: int | None = Field(default=None, ge=0)
    judged: int = Field(default=0, ge=0, description="(position, earlier token) pairs that the rule covers")
    penalised: int = Field(default=0, ge=0, description="those of them whose logit fell")
    judged_latest: int = Field(default=0, ge=0, description="pairs of tokens from the latest step only")
    missed_latest: int = Field(default=0, ge=0, description="pairs left out that lag one step at most")
    reach: int = Field(default=1, ge=1, description="most tokens of one step")


_KINDS: dict[str, type[_Extra]] = {
    "phases": Phases, "profiled_phases": Phases, "kernel_trace": KernelTrace, "decision_probe": DecisionProbe,
    "attention_mass": AttentionMass, "draws": Draws, "penalty": PenaltyAudit,
}  # fmt: skip
E_ = TypeVar("E_", bound=_Extra)


def read_extra(record: Record, key: str, kind: type[E_]) -> E_ | None:
    """One extra of a record, or None where it has none.

    Raises:
        RecordError: it is there but not of this shape.
    """
    raw = record.extras.get(key)
    return None if raw is None else _checked(record, key, kind, raw)


def read_kernels(record: Record) -> list[Kernel]:
    """The kernels of a traced record, largest first; empty where it was not traced."""
    raw = record.extras.get("kernels")
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise RecordError(f"record {record.key}: extras.kernels is not a list")
    found = [_checked(record, "kernels", Kernel, item) for item in raw]
    return sorted(found, key=lambda k: (-k.us_per_iteration, k.name))


def read_margins(record: Record) -> list[float]:
    """The margin at each output token; empty where the record has none.

    Raises:
        RecordError: it holds something else.
    """
    raw = record.extras.get("output_margins")
    if raw is None:
        return []
    try:
        return [float(value) for value in raw]
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"record {record.key}: extras.output_margins is no list of numbers; measure it again"
        ) from error


def check_extras(record: Record) -> None:
    """Read every extra once.

    Raises:
        RecordError: one is not of its shape.
    """
    for key, kind in _KINDS.items():
        read_extra(record, key, kind)
    read_kernels(record)
    read_margins(record)


def _checked(record: Record, key: str, kind: type[E_], raw: object) -> E_:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(
            f"record {record.key}: extras.{key} is not readable ({place}: {first['msg']}); measure it again"
        ) from error
