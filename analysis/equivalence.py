"""Do the arms give the same greedy output? Pairs of arms, prompt by prompt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

from analysis.outputs import compare_outputs
from analysis.study import Cell, Group
from harness.points import ARMS
from harness.records import Outcome


@dataclass(frozen=True)
class ArmPair:
    """Two arms over all prompts they share.

    `first_differences`: position of the first different token, one a prompt that differs. `margins`: the gap
    between the two best logits there, where a record's extras tell it (`output_margins`).
    """

    task: str
    context_tokens: int
    first: str
    second: str
    prompts: int
    identical: int
    tokens: int
    first_differences: tuple[int, ...]
    margins: tuple[float, ...]


def arm_pairs(group: Group) -> list[ArmPair]:
    """Every pair of arms of a group by task and context; sampled (not greedy) points are left out."""
    by_prompt: dict[tuple[object, ...], dict[str, Cell]] = defaultdict(dict)
    for cell in group.cells:
        p = cell.point
        if cell.record.outcome is not Outcome.OK or p.temperature or not cell.record.requests or p.batch > 1:
            continue
        settings = (p.task, p.context_tokens, p.dtype, p.kv_dtype, p.tp, p.seed, repr(p.task_params),
                    p.repetition_penalty, p.max_new_tokens, p.ignore_eos)  # fmt: skip
        by_prompt[settings].setdefault(p.arm, cell)
    found: dict[tuple[str, int, str, str], list[tuple[Cell, Cell]]] = defaultdict(list)
    for cells in by_prompt.values():
        for a, b in combinations([arm for arm in ARMS if arm in cells], 2):
            point = cells[a].point
            found[point.task, point.context_tokens, a, b].append((cells[a], cells[b]))
    return [_pair(key, pairs) for key, pairs in sorted(found.items(), key=lambda kv: _rank(kv[0]))]


def _rank(key: tuple[str, int, str, str]) -> tuple[str, int, int, int]:
    return key[0], key[1], ARMS.index(key[2]), ARMS.index(key[3])


def _pair(key: tuple[str, int, str, str], pairs: list[tuple[Cell, Cell]]) -> ArmPair:
    identical, tokens = 0, 0
    places: list[int] = []
    margins: list[float] = []
    for a, b in pairs:
        first = a.record.requests[0].output_ids
        result = compare_outputs(first, b.record.requests[0].output_ids)
        tokens += len(first)
        if result.identical:
            identical += 1
            continue
        place = result.first_difference or 0
        places.append(place)
        told = a.record.extras.get("output_margins")
        if isinstance(told, list) and place < len(told):
            margins.append(float(told[place]))
    return ArmPair(*key, len(pairs), identical, tokens, tuple(places), tuple(margins))
