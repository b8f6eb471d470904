"""Addresses of pages: read from what a browser sends, which may be anything, and written for links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from flask import has_request_context, request

LARGEST = 2**63 - 1  # of SQLite
RUN = re.compile(r"/run/([0-9]{1,19})(?:/(what-if|audit|client))?", re.ASCII)
FIXED = {"/": "runs", "/compare": "compare"}


@dataclass(frozen=True)
class Page:
    """A kind of page, the run it is about (0 of none), and its query."""

    kind: str
    run: int = 0
    query: Mapping[str, str] = field(default_factory=dict)


def read(path: object, search: object = "") -> Page:
    """The page behind an address; of kind "nowhere" where there is none.

    >>> read("/run/3/what-if", "?rule=gesd"), read("/run/../etc")
    (Page(kind='what-if', run=3, query={'rule': 'gesd'}), Page(kind='nowhere', run=0, query={}))
    """
    path = (path.removeprefix(root()) if isinstance(path, str) else "").rstrip("/") or "/"
    if path in FIXED:
        return Page(FIXED[path], 0, query(search))
    found = RUN.fullmatch(path)
    if found is None or int(found[1]) > LARGEST:
        return Page("nowhere")
    return Page(found[2] or "run", int(found[1]), query(search))


def root() -> str:
    """The path before all pages, where this request came by one."""
    return request.script_root if has_request_context() else ""


def query(search: object) -> dict[str, str]:
    """The query of an address; of a key given twice, the last."""
    try:
        return dict(parse_qsl(search.lstrip("?"), max_num_fields=50)) if isinstance(search, str) else {}
    except ValueError:  # more fields than any page has
        return {}


def number(text: object) -> int | None:
    """A run's number, if it is one.

    >>> number("12"), number("1e3"), number("../1"), number(None)
    (12, None, None, None)
    """
    digits = str(text) if isinstance(text, int | str) else ""
    known = digits.isascii() and digits.isdecimal() and len(digits) <= 19 and int(digits) <= LARGEST
    return int(digits) if known else None


def link(kind: str, run: int | None = None, **values: object) -> str:
    """The address of a page; values that are None are left out.

    >>> link("what-if", 3, rule="gesd"), link("runs"), link("client", 3, name="a b", watch=None)
    ('/run/3/what-if?rule=gesd', '/', '/run/3/client?name=a+b')
    """
    fixed = next((p for p, k in FIXED.items() if k == kind), None)
    path = fixed or f"/run/{run}" + (f"/{kind}" if kind != "run" else "")
    return root() + path + search(**values)


def search(**values: object) -> str:
    """The query part of an address."""
    given = {k: v for k, v in values.items() if v is not None}
    return "?" + urlencode(given) if given else ""
