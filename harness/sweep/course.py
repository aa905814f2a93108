"""How far a plan's study has come, from the records that it has by now."""

from __future__ import annotations

from harness.sweep.execute import recorded_since
from harness.sweep.naming import boot_names, point_names
from harness.sweep.plan import Plan, PlannedPoint, State
from harness.view.progress import Course


def course_of(plan: Plan) -> Course:
    """The course of a plan's study, whichever processes and machines measure its points."""
    wanted = [p for p in plan.points if p.state in (State.TO_RUN, State.REFUSED)]
    names, total = boot_names(plan), len(plan.active)
    boots = {
        boot.spec.key: f"boot {number} of {total}, {names[boot.boot_id]}"
        for number, boot in enumerate(plan.active, 1)
    }
    return Course(len(wanted), _Done(plan, wanted), boots, point_names(plan))


class _Done:
    """Counts the points that have a record of this study; one that has is not looked at again."""

    def __init__(self, plan: Plan, wanted: list[PlannedPoint]) -> None:
        self._plan, self._total, self._left = plan, len(wanted), wanted

    def __call__(self) -> int:
        self._left = [planned for planned in self._left if recorded_since(self._plan, planned) is None]
        return self._total - len(self._left)
