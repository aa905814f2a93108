"""One self-contained HTML file: summary, tables, figures, environment, links to raw records."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from analysis.files import write_text
from analysis.progress import shown
from analysis.report.summary import Summary, environment_rows, summarise
from analysis.study import Cell, Study
from analysis.tables import TABLES, build
from analysis.tables.base import INSIDE, NOT_MEASURED, OUTSIDE, Content, Table, Value
from analysis.tables.render import short_text

__all__ = ["Summary", "summarise", "write_report"]


def write_report(study: Study, path: Path, results: Path) -> Path:
    """Write the report; `results` is where the linked records lie."""
    import jinja2  # noqa: PLC0415

    source = resources.files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(source).render(
        where=study.where,
        summary=summarise(study),
        tables=[_table_view(build(name, study)) for name in shown(list(TABLES), "making tables")],
        figures=list(_figures(study)),
        environment=environment_rows(study),
        records=[_record_view(cell, path, results) for cell in study.cells],
    )
    return write_text(path, page)


def _figures(study: Study) -> Iterable[dict[str, Any]]:
    from markupsafe import Markup  # noqa: PLC0415

    from analysis.figures import FIGURES, base, make, stem_of  # noqa: PLC0415

    for name in shown(list(FIGURES), "drawing figures"):
        figure, stem, needs = make(name, study), stem_of(name), FIGURES[name]
        if figure is None:
            yield {"name": stem, "note": f"nothing to draw: it needs {needs}", "svg": ""}
            continue
        with base.styled():
            text = base.render(figure, "svg").decode()
        base.close(figure)
        # Inline: the XML head goes, and ids must not meet those of another figure on the page.
        body = text[text.index("<svg") :]
        for mark in ('id="', 'href="#', "url(#"):
            body = body.replace(mark, f"{mark}{stem}-")
        yield {"name": stem, "note": "", "svg": Markup(body)}


def _table_view(table: Table) -> dict[str, Any]:
    rows = [
        [
            {"text": short_text(row.get(column.name), text), "css": _css(row.get(column.name))}
            for column, text in zip(table.columns, texts, strict=True)
        ]
        for row, texts in zip(table.rows, table.cells(), strict=True)
    ]
    heads = [column.title for column in table.columns]
    return {"name": table.name, "title": table.title, "header": table.header, "heads": heads, "rows": rows}


def _css(content: Content) -> str:
    if not isinstance(content, Value):
        return ""
    return {INSIDE: "value inside", OUTSIDE: "value outside", NOT_MEASURED: "value missing"}.get(
        content.verdict, "value"
    )


def _record_view(cell: Cell, page: Path, results: Path) -> dict[str, str]:
    folder = (results / "points" / cell.record.key).resolve()
    # Path.relative_to walks up only from Python 3.12 on.
    link = Path(os.path.relpath(folder, page.resolve().parent)).as_posix()
    return {
        "label": cell.point.label,
        "seed": str(cell.point.seed),
        "verdict": cell.verdict.label,
        "text": cell.verdict.text,
        "link": link,
        "key": cell.record.key,
    }
