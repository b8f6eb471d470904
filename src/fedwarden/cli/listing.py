"""``fedwarden list``: what a scenario may name."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from ..core.registry import FOLDERS, lookup, names, parameters, summary
from .common import AsJson, emit, hint, out, safe, table

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def listing(
    kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(FOLDERS)}.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Names, what they do, and their options with defaults; without KIND, the names of every kind.

    A name goes where a scenario asks for one: `rule = "gesd"`, or with options `rule = {name = "gesd", alpha = 0.01}`.
    """
    if kind is None:
        every = {k: list(names(k)) for k in FOLDERS}
        if as_json:
            return emit(every)
        return _kinds(every)
    found = names(kind)
    if as_json:
        entries = [{"name": n, "summary": summary(kind, n), "options": options(kind, n)} for n in found]
        return emit({"kind": kind, "entries": entries})
    shown = table(kind, "what it is", "options = defaults", left=(0, 1, 2))
    for name in found:
        text = ", ".join(f"{k} = {v!r}" for k, v in options(kind, name).items())
        shown.add_row(name, safe(summary(kind, name).replace("``", "")), safe(text))
    out.print(shown)
    return None


def options(kind: str, name: str) -> dict[str, object]:
    """The options that a scenario may set; what the simulator passes by itself has no default and is left out."""
    known = parameters(lookup(kind, name))
    return {option: default for option, default in known.items() if default is not inspect.Parameter.empty}


def _kinds(every: dict[str, list[str]]) -> None:
    shown = table("kind", "names", left=(0, 1))
    for kind, found in every.items():
        shown.add_row(kind, ", ".join(found))
    out.print(shown)
    hint("fedwarden list rule  # what each rule does and its options")
