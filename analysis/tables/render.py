"""Tables as terminal output, Markdown, CSV and LaTeX."""

from __future__ import annotations

from typing import Any, Literal

from analysis.tables.base import INSIDE, NOT_MEASURED, OUTSIDE, Content, Table, Value

FORMATS = ("terminal", "markdown", "csv", "latex")
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


def to_csv(table: Table) -> str:
    """The frame of the table; header lines are comments above it."""
    comments = "".join(f"# {line}\n" for line in (table.title, *table.header))
    return comments + str(table.frame().to_csv(index=False, float_format="%.6g", lineterminator="\n"))


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


def terminal(table: Table) -> Any:
    """A rich renderable: header lines, the table, coloured by verdict."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = RichTable(title=table.title, title_justify="left", show_lines=False)
    for column in table.columns:
        value = any(isinstance(row.get(column.name), Value) for row in table.rows)
        justify: Literal["right", "left"] = "right" if value else "left"
        drawn.add_column(Text(column.title), justify=justify, overflow="fold", no_wrap=not value)
    for row, texts in zip(table.rows, table.cells(), strict=True):
        contents = [row.get(column.name) for column in table.columns]
        drawn.add_row(
            *(Text(short_text(c, t), style=_style(c)) for t, c in zip(texts, contents, strict=True))
        )
    return Group(drawn, *(Text(line, style="dim") for line in table.header))


def short_text(content: Content, text: str) -> str:
    """Narrow cells: intervals on their own line; what was not measured is a dash or the paper's value."""
    if isinstance(content, Value) and content.verdict == NOT_MEASURED:
        return f"not measured; paper {content.claim.text}" if content.claim else "-"
    return text.replace(" (paper", "\n(paper").replace(" [", "\n[") if isinstance(content, Value) else text


def _style(content: Content) -> str:
    if not isinstance(content, Value):
        return ""
    return {INSIDE: "green", OUTSIDE: "yellow", NOT_MEASURED: "dim"}.get(content.verdict, "")


def render(table: Table, kind: str) -> str:
    """Text in a format of `FORMATS`; terminal text is plain and 160 wide."""
    if kind == "terminal":
        from rich.console import Console  # noqa: PLC0415

        console = Console(width=160, no_color=True)
        with console.capture() as capture:
            console.print(terminal(table))
        return capture.get()
    return {"markdown": markdown, "csv": to_csv, "latex": latex}[kind](table)
