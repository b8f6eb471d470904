"""``fedwarden trust``: no watch acts on a client."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import AsJson, Home, RunNumber
from .word import By, Client, Reason, speak

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def trust(
    run: RunNumber,
    client: Client,
    undo: Annotated[bool, typer.Option("--undo", help="Trust it no longer.")] = False,
    reason: Reason = "",
    by: By = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Trust a client: no watch skips, suspends or excludes it, from the next round of a running federation on.

    It still may not send NaN, nor an update of gross length. Evidence goes on being gathered, and counts again after
    `--undo`; `fedwarden readmit` clears it. The word is recorded with its reason; a replay and a resumed run obey it in
    the same rounds.
    """
    speak(run, "untrust" if undo else "trust", client, reason, by, home, as_json)
