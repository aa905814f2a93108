"""What a point asks its server besides the timed run, afterwards and untimed: entries of `record.extras`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import ServerError
from harness.measure import draws, penalty
from harness.measure.protocol import TimedRun, request
from harness.points import SPECULATIVE_ARMS, Point
from harness.server.attach import AnyServer

Audits = dict[float, dict[str, Any]]
"""What one server did with each repetition penalty: asked once, and again while it showed nothing."""
_SHOWN_NOTHING = {str(penalty.Penalty.NOT_EXERCISED), str(penalty.Penalty.UNKNOWN)}


def ask_besides(
    server: AnyServer,
    point: Point,
    prompt_ids: Sequence[int],
    run: TimedRun,
    stall_limit_s: float,
    audits: Audits,
) -> dict[str, Any]:
    """Extras `output_margins` and `draws` where the point asks for them, `penalty` where it sets one.

    A penalty that cannot be checked says so and spoils nothing.

    Raises:
        ServerError: a probe that the point asks for failed.
    """

    def ask(
        prompts: Sequence[Sequence[int]], sampling: dict[str, Any], options: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        return request(server, prompts, sampling, stall_limit_s, options)

    extras: dict[str, Any] = {}
    if run.margins is not None:
        extras["output_margins"] = run.margins
    if point.probe == "draws":
        extras["draws"] = draws.draw(ask, point, prompt_ids)
    asked = point.repetition_penalty
    if asked != 1.0:
        if asked not in audits or audits[asked]["state"] in _SHOWN_NOTHING:
            audits[asked] = _audit(ask, point, prompt_ids)
        extras["penalty"] = audits[asked]
    return extras


def _audit(ask: penalty.Ask, point: Point, prompt_ids: Sequence[int]) -> dict[str, Any]:
    asked = {"repetition_penalty": point.repetition_penalty}
    try:
        # A prompt as long as the point's with its output fits the server, whatever the limit is.
        tokens = min(penalty.NEW_TOKENS, point.max_new_tokens)
        drafts = point.arm in SPECULATIVE_ARMS
        found = penalty.audit(ask, prompt_ids, asked, point.depth, drafts, tokens)
    except ServerError as error:
        return {"state": str(penalty.Penalty.UNKNOWN), "reason": str(error), **asked}
    return found.as_dict(**asked)
