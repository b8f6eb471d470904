"""``fedwarden send``: a recorded run to a sink, or what is pending to the sinks of all."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..core.config import override
from ..core.errors import ConfigError, FedwardenError
from ..core.words import count, reason
from ..sinks.feed import Feed
from ..store import outbox
from ..store.connection import user
from ..store.ledger import Ledger
from .common import LOG, AsJson, Home, Imports, Settings, bring, emit, out, reader, safe

AGAIN = "tried again when you repeat this command; --drop gives it up"
POLL = 1.0  # seconds between two looks at a run that goes on
TRIES = 3  # failures in a row after which a run is followed no longer

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def send(
    run: Annotated[str | None, typer.Argument(help="A run's number or name; --pending is for all by default.")] = None,
    to: Annotated[str | None, typer.Option(help="The sink; see fedwarden list sink.", show_default=False)] = None,
    settings: Settings = None,
    pending: Annotated[bool, typer.Option("--pending", help="Try what the runs' own sinks have missed.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="With --pending: give it up instead.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until the run ends.")] = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Send a run's values by client and round to another program; rounds that are there already are not sent again.

    `--set` takes the sink's options, as in `--set folder=logs`, and `clients=flagged` or `most=50` to send fewer
    clients. With `--follow`, a round is sent when the next one is there, since evaluation may still add to it.

    `--pending` sends what the sinks of a run could not take, such as alerts, to those sinks. What stays pending is
    named, and the exit code is 1. `fedwarden show` names it without a try, and `--drop` gives it up.
    """
    bring(imports)
    if pending or drop:
        return _pending(run, home, as_json, drop)
    if run is None or to is None:
        raise ConfigError("give a run and --to, as in fedwarden send 1 --to tensorboard, or --pending")
    feed = Feed.of(override({"name": to}, settings or ()))
    with reader(home) as ledger:
        found = ledger.run(run)
        sent = _follow(feed, ledger, found.id) if follow else feed.send(ledger, found.id)
        feed.close(ledger.run(found.id).state)
    if feed.note:
        LOG.warning("%s", feed.note)
    if as_json:
        return emit({"run": found.id, "name": found.name, "to": feed.name, "sent": sent})
    rounds = count(sent, "round") if sent else "nothing new"
    return out.print(f"run {found.id}  {safe(found.name)}: {rounds} sent to {feed.name}")


def _pending(which: str | None, home: Path | None, as_json: bool, drop: bool) -> None:
    """Try everything that is pending once, or give it up."""
    with reader(home) as ledger:  # which may be of an earlier version: reading does not bring it up to date
        run = None if which is None else ledger.run(which).id
        tried = outbox.messages(ledger, run)
    with Ledger(home, create=False, read_only=not tried) as ledger:
        if drop and tried:
            outbox.drop(ledger, run, user())
        for number, key in {} if drop else outbox.by_sink(tried):
            try:
                known = outbox.rounds_of(ledger, number, key)
                feed = Feed.of(known.content if known else key)
                feed.deliver(ledger, number, key)
                feed.close(ledger.run(number).state)
            except FedwardenError as error:
                LOG.warning("run %d: %s", number, reason(error))
        left = outbox.messages(ledger, run)
        ever = outbox.messages(ledger, run, pending=False) if as_json else []
        still = outbox.told(ledger, run, AGAIN)
    kept = {(m.run, m.sink, m.number) for m in left}
    gone = [m for m in tried if (m.run, m.sink, m.number) not in kept]
    if as_json:
        what = {"given_up" if drop else "sent": len(gone), "pending": len(left)}
        emit({"sent": 0, "given_up": 0} | what | {"messages": [asdict(m) for m in ever]})
    else:
        verb = "given up for" if drop else "delivered to"
        done = [f"run {n}: {outbox.what(some)} {verb} {sink!r}" for (n, sink), some in outbox.by_sink(gone).items()]
        for line in [*done, *still] or ["nothing is pending"]:
            out.print(safe(line))
    if left:
        raise typer.Exit(1)


def _follow(feed: Feed, ledger: Ledger, run: int) -> int:
    """Send rounds as they come until the run ends; a target that is away for a moment is tried again."""
    sent = failures = 0
    while True:
        running = ledger.run(run).state == "running"
        try:
            sent += feed.send(ledger, run, ledger.last_round(run) if running else None)
            failures = 0
        except FedwardenError:
            failures += 1
            if failures >= TRIES:
                raise
        else:
            if not running:
                return sent
        time.sleep(POLL)
