"""Small pieces of HTML for notebooks and reports; all text is escaped, since names come from clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .words import printable


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of plain text.

    >>> table(["client"], [["<b>"]])
    '<table><thead><tr><th>client</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    body = "".join(_row("td", row) for row in rows)
    return f"<table>{title}<thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>"


def facts(values: Mapping[str, object], caption: str = "") -> str:
    """A table of names and values."""
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    body = "".join(f"<tr><th>{text(k)}</th><td>{text(v)}</td></tr>" for k, v in values.items())
    return f"<table>{title}<tbody>{body}</tbody></table>"


def text(value: object) -> str:
    """A value as text of a page: no tags, and nothing that turns the text about it round.

    >>> print(text("<b>\\u202e"))
    &lt;b&gt;\\u202e
    """
    return escape(printable(str(value)))


def _row(tag: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f"<{tag}>{text(cell)}</{tag}>" for cell in cells) + "</tr>"
