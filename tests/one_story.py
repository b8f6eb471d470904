"""What is said of a client, read from every place that says it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from html import unescape
from pathlib import Path

import numpy as np

from fedwarden.cli import main
from fedwarden.core.types import RoundRecord
from fedwarden.core.words import number, printable
from fedwarden.dashboard.pages.client import sheet
from fedwarden.dashboard.state import Workspace
from fedwarden.report.html import page
from fedwarden.report.summary import tell
from fedwarden.sinks.alerts import KINDS, alerts
from fedwarden.store.ledger import Ledger
from fedwarden.store.record import RunRecord
from fedwarden.store.round import RoundStory


def printed(*command: object) -> str:
    """What a command prints."""
    with redirect_stdout(io.StringIO()) as out:
        assert main([str(part) for part in command]) == 0
    return out.getvalue()


def agree(home: Path, run: int) -> dict[str, str]:
    """The sentence of every client that is worth a word, which all places have, with the numbers of the record."""
    record = RunRecord.open(run, home)
    with Ledger(home, read_only=True) as ledger:
        records = ledger.records(run)
    story, before = record.story, [RoundRecord(0, (), np.zeros(0), np.zeros(0)), *records]  # as a run that begins
    found = {client: str(story.reason(client)) for client in story.standings}
    screen = printed("show", run, "--all", "--home", home)
    told = {c["client"]: c["reason"] for c in json.loads(printed("show", run, "--json", "--home", home))["clients"]}
    paper, view, summary = unescape(page(record)), Workspace(home).view(run), " ".join(tell(record))
    for k, (client, sentence) in enumerate(found.items()):
        reason = story.reason(client)
        place = next(i for i, r in enumerate(records) if r.round == reason.round)
        then = records[place]
        assert sentence.startswith(f"Client {client} was {reason.state} in round {reason.round}: ")
        for flag in reason.flags:
            watch = next(w for w in then.watches if w.name == flag.watch)
            at = RoundStory(then).place[client]
            doubt = RoundStory(then).doubts.get(client)
            assert watch.flagged[at] or (doubt is not None and doubt.values["harmful"])
            assert flag.height != flag.height or f"({watch.name} {number(float(watch.scores[at]))}, " in sentence
            assert flag.height != flag.height or f" {number(watch.threshold)}, " in sentence
        assert told[client] == sentence
        assert printable(sentence) in screen
        assert printable(sentence) in paper
        assert k >= 5 or sentence in summary
        shown = json.dumps(sheet(view, client, False), default=lambda c: c.to_plotly_json(), ensure_ascii=False)
        assert json.dumps(printable(sentence), ensure_ascii=False)[1:-1] in shown
        sent = alerts(then, "run", before[place], KINDS)
        assert any(a.client == client and a.words.startswith(sentence) for a in sent)
    return found
