"""What a running study shows."""

import io

from rich.console import Console

from harness.records import Outcome
from harness.server.spec import ServerSpec
from harness.sweep.execute import failure_record
from harness.view.progress import Course, ProgressView
from tests.harness.sweep.test_store import POINT
from tests.harness.test_spec import BASE

SPEC = ServerSpec(**BASE)


def course(done, total=12):
    boots = {SPEC.key: "boot 2 of 5, tiny ring d=7 W=252+4 TP1 bfloat16 KV"}
    return Course(total, lambda: done[0], boots, {POINT.key: "the very long name of a point " * 3})


def test_the_line_fits_80_columns_with_its_bar_and_its_counts():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with ProgressView(course([3]), console) as view:
        view.boot_starts(SPEC, [POINT])
        view.phase("prefill", POINT)
        view._progress.refresh()
        drawn = console.render_lines(view._progress.get_renderable())
    (line,) = ("".join(segment.text for segment in row) for row in drawn)
    assert len(line) == 80
    assert "prefill | the very long" in line and "…" in line
    assert "━" in line and "3/12" in line and "0:00:0" in line


def test_points_and_boots_are_counted_over_the_whole_study():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=False)
    done = [4]
    with ProgressView(course(done), console) as view:
        view.boot_starts(SPEC, [POINT])
        done[0] = 5
        view.point_done(failure_record(POINT, Outcome.INVALID, "why"))
    said = out.getvalue()
    assert "boot 2 of 5, tiny ring d=7 W=252+4 TP1 bfloat16 KV: loading (1 point on it)" in said
    assert "[5/12] the very long name" in said and " left" in said
