"""Small pieces of HTML for notebooks and reports; all text is escaped, since names come from clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of plain text.

    >>> table(["client"], [["<b>"]])
    '<table><thead><tr><th>client</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(_row("td", row) for row in rows)
    return f"<table>{title}<thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>"


def facts(values: Mapping[str, object], caption: str = "") -> str:
    """A table of names and values."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in values.items())
    return f"<table>{title}<tbody>{body}</tbody></table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
