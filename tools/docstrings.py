"""Docstrings as Markdown: an example with prompts becomes a fence, a role a plain name."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"((?:^>>> .*\n?)(?:^.+\n?)*)", re.MULTILINE)
ROLE = re.compile(r":\w+:`([^`]+)`")


def as_markdown(text: str) -> str:
    """A docstring for a page.

    >>> as_markdown("See :func:`f`.")
    'See `f`.'
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[1].rstrip()}\n```\n", ROLE.sub(r"`\1`", text))


class Markdown(griffe.Extension):
    """Rewrites every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
