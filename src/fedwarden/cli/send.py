"""``fedwarden send``: a recorded run to a sink."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..core.config import override
from ..sim.scenario import ASKED, load_modules
from ..sinks.feed import TRIES, Feed, SinkError
from ..store.ledger import Ledger
from .common import AsJson, Home, Imports, RunNumber, Settings, emit, err, out, reader, safe

POLL = 1.0  # seconds between two looks at a run that goes on

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def send(
    run: RunNumber,
    to: Annotated[str, typer.Option(help="The sink; see fedwarden list sink.", show_default=False)],
    settings: Settings = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until the run ends.")] = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Send a run's values by client and round to another program; rounds that are there already are not sent again.

    `--set` takes the sink's options, as in `--set folder=logs`, and `clients=flagged` or `most=50` to send fewer
    clients. With `--follow`, a round is sent when the next one is there, since evaluation may still add to it.
    """
    load_modules(imports or (), ASKED)
    feed = Feed.of(override({"name": to}, settings or ()))
    with reader(home) as ledger:
        found = ledger.run(run)
        sent = _follow(feed, ledger, found.id) if follow else feed.send(ledger, found.id)
        feed.close(ledger.run(found.id).state)
    if feed.note:
        err.print(f"[yellow]warning[/] round {feed.shortened}: {safe(str(feed.note))}")
    if as_json:
        return emit({"run": found.id, "name": found.name, "to": feed.name, "sent": sent})
    rounds = f"{sent} round{'' if sent == 1 else 's'}" if sent else "nothing new"
    return out.print(f"run {found.id}  {safe(found.name)}: {rounds} sent to {feed.name}")


def _follow(feed: Feed, ledger: Ledger, run: int) -> int:
    """Send rounds as they come until the run ends; a target that is away for a moment is tried again."""
    sent = 0
    while True:
        running = ledger.run(run).state == "running"
        try:
            sent += feed.send(ledger, run, ledger.last_round(run) if running else None)
        except SinkError:
            if feed.failures >= TRIES:
                raise
        else:
            if not running:
                return sent
        time.sleep(POLL)
