"""Tables as terminal output, Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analysis.spreadsheets import to_csv
from analysis.tables.base import INSIDE, NOT_MEASURED, OUTSIDE, Content, Table, Value

if TYPE_CHECKING:
    from rich.table import Table as RichTable

FORMATS = ("terminal", "markdown", "csv", "latex")
_NO_LIMIT = 10_000
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}",
}  # fmt: skip


def markdown(table: Table) -> str:
    """A GitHub table under its title and header lines."""
    lines = [f"### {table.title}", "", *(f"- {line}" for line in table.header), ""]
    lines.append("| " + " | ".join(_pipe(c.title) for c in table.columns) + " |")
    lines.append("| " + " | ".join("---" for _ in table.columns) + " |")
    lines += ["| " + " | ".join(_pipe(text) for text in row) + " |" for row in table.cells()]
    return "\n".join(lines) + "\n"


def _pipe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _csv(table: Table) -> str:
    """The frame of the table; header lines are comments above it."""
    comments = "".join(f"# {line}\n" for line in (table.title, *table.header))
    return comments + to_csv(table.frame(), float_format="%.6g")


def latex(table: Table) -> str:
    """A booktabs table; header lines go into the caption."""
    caption = " ".join(_escape(line) for line in (table.title + ".", *table.header))
    spec = "l" * len(table.columns)
    lines = [
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{spec}}}", r"\toprule",
        " & ".join(_escape(c.title) for c in table.columns) + r" \\", r"\midrule",
    ]  # fmt: skip
    lines += [" & ".join(_escape(text) for text in row) + r" \\" for row in table.cells()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _escape(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


def terminal(table: Table, width: int | None = None) -> Any:
    """A rich renderable: the table, coloured by verdict, and its header lines.

    Args:
        width: columns of the screen. Where the table needs more, each row is a block of `column: value`
            lines: squeezed columns would lose their numbers. None: as wide as it needs.
    """
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = _grid(table)
    body = grid if width is None or _width(grid) <= width else Group(*_blocks(table))
    lines = (Text(line, style="dim") for line in table.header)
    return Group(Text(table.title, style="italic"), body, *lines)


def _grid(table: Table) -> RichTable:
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = RichTable(show_lines=False)
    for column in table.columns:
        value = any(isinstance(row.get(column.name), Value) for row in table.rows)
        drawn.add_column(Text(column.title), justify="right" if value else "left", no_wrap=True)
    for row, texts in zip(table.rows, table.cells(), strict=True):
        contents = [row.get(column.name) for column in table.columns]
        drawn.add_row(
            *(Text(short_text(c, t), style=_style(c)) for t, c in zip(texts, contents, strict=True))
        )
    return drawn


def _width(grid: RichTable) -> int:
    """Columns that a table needs to show every cell in full."""
    from rich.console import Console  # noqa: PLC0415

    return Console(width=_NO_LIMIT, force_terminal=False).measure(grid).maximum


def _blocks(table: Table) -> Iterator[Any]:
    """The rows one below the other; columns that tell rows apart share a line, empty values are left out."""
    from rich.text import Text  # noqa: PLC0415

    valued = {c.name for c in table.columns for row in table.rows if isinstance(row.get(c.name), Value)}
    for row, texts in zip(table.rows, table.cells(), strict=True):
        cells = [(c, row.get(c.name), text) for c, text in zip(table.columns, texts, strict=True)]
        named = [f"{c.title} {text}" for c, _, text in cells if c.name not in valued and text]
        yield Text(", ".join(named), style="bold")
        for column, content, text in cells:
            if column.name in valued and text:
                yield Text(f"  {column.title}: ").append(text, style=_style(content))


def short_text(content: Content, text: str) -> str:
    """Narrow cells: intervals on their own line; what was not measured is a dash or the paper's value."""
    if isinstance(content, Value) and content.verdict == NOT_MEASURED:
        return f"not measured;\npaper {content.claim.text}" if content.claim else "-"
    return text.replace(" (paper", "\n(paper").replace(" [", "\n[") if isinstance(content, Value) else text


def _style(content: Content) -> str:
    if not isinstance(content, Value):
        return ""
    return {INSIDE: "green", OUTSIDE: "yellow", NOT_MEASURED: "dim"}.get(content.verdict, "")


def render(table: Table, kind: str) -> str:
    """Text in a format of `FORMATS`; terminal text is plain and as wide as the table needs."""
    if kind == "terminal":
        return plain(table)
    return {"markdown": markdown, "csv": _csv, "latex": latex}[kind](table)


def plain(table: Table) -> str:
    """Terminal text without colours, for files and pipes: nothing is folded or cut."""
    from rich.console import Console  # noqa: PLC0415

    # A dumb terminal has 80 columns for rich, whatever width it is given.
    console = Console(width=_NO_LIMIT, force_terminal=False, no_color=True, color_system=None)
    with console.capture() as capture:
        console.print(terminal(table))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
