"""The parts of a speculative decode iteration and the phases they add up to: one list for marks and tables.

The phases are those of arXiv:2607.21535, table 7: the target's bare verify, what speculation adds around it
(tree build, slots and indices, sampling, commit), and the draft with its index builds and extend.
"""

from __future__ import annotations

VERIFY, OVERHEAD, DRAFT, UNATTRIBUTED = "verify_base", "verify_overhead", "draft", "unattributed"

RANGE_PREFIX = "wmtp."
"""Begins the name of every range that a profiler sees; the part's name follows."""
ITERATION = "iteration"
"""The range of a whole iteration of the speculative worker."""

PHASE_OF = {
    "verify_forward": VERIFY,
    "verify_index": OVERHEAD,
    "verify_prepare": OVERHEAD,
    "verify_commit": OVERHEAD,
    "tree_build": OVERHEAD,
    "sampling": OVERHEAD,
    "draft": DRAFT,
    "draft_prepare": DRAFT,
    "draft_index": DRAFT,
    "draft_forward": DRAFT,
    "draft_extend": DRAFT,
    "draft_extend_prepare": DRAFT,
    "draft_extend_index": DRAFT,
    "draft_extend_forward": DRAFT,
}
INDEX_BUILDS = ("draft_index", "draft_extend_index")
"""Parts that build the draft's key indices."""


def base_part(name: str) -> str:
    """A part's name without the number of its call: `draft_forward.3` -> `draft_forward`."""
    return name.partition(".")[0]


def phase_of(name: str) -> str:
    """The phase that a part belongs to; unknown parts stay unattributed."""
    return PHASE_OF.get(base_part(name), UNATTRIBUTED)
