"""What was seen of one client, as one page to pass on to it: of the others it has counts only.

The reader may be an attacker, so that thresholds, which say how far it can go, are left out unless they are asked for.
"""

from __future__ import annotations

from markupsafe import Markup

from ..core.errors import ConfigError, nearest
from ..core.notes import GROUPS_PROVE
from ..core.words import count, number
from ..store.record import RunRecord
from ..store.round import DECIDED, RoundStory
from .html import HERE, TEMPLATES, policy
from .summary import day

LIMITS = frozenset({"least", "most"})  # values of a note that say what is accepted
TO_DO = (
    "Check that the labels, the preprocessing, the learning rate, the local steps and the software are as agreed.",
    "If your data differ from the others' for a reason that you know, tell the operator, who can let you differ.",
    "If a reply was rejected, send what the reason asks for; the next round takes it.",
)


def tell_client(record: RunRecord, client: str, thresholds: bool = False) -> tuple[list[str], list[list[str]]]:
    """What became of a client in a run in sentences, and round by round: the round, its state, and what was seen."""
    run, story = record.run, record.story
    if client not in story.clients:
        raise ConfigError(f"run {run.id} has no client {client!r}; {nearest(client, story.clients)}")
    ended, rounds = story.clients[client], []
    for t in story.series.rounds.tolist():
        here = RoundStory(story.full(t))
        if str(reason := here.reason(client)):
            rounds.append([str(t), reason.state, seen(here, client, thresholds)])
    many = f"{count(len(story.series), 'round')} with {count(len(story.series.clients), 'client')}"
    return [
        f"Run {run.id} ({run.name}), begun on {day(run.created)}: {many}.",
        f"Client {client} took part in {count(ended.rounds, 'round')}. "
        + (f"{str(ended.standing).capitalize()}." if ended.standing else "No watch flagged it."),
    ], rounds


def seen(here: RoundStory, client: str, thresholds: bool) -> str:
    """Why a client is in its state in a round, without a word about any other client."""
    reason = here.reason(client)
    if kind := next((n.kind for n in here.record.notes if client in n.clients and n.kind in DECIDED), None):
        return GROUPS_PROVE if kind == "groups_prove" else "the operator decided so"
    if reason.state == "rejected":
        note = here.refused[client]
        hidden = not thresholds and LIMITS & note.values.keys()
        return "its reply was outside of what is accepted" if hidden else str(note)
    if client in here.copies and not reason.flags:
        return f"its update was identical to that of {count(len(here.copies[client]) - 1, 'other client')}"
    limits = [f", limit {number(f.limit)}" if thresholds else "" for f in reason.flags]
    told = [f"{f.words} ({f.watch} {number(f.score)}{limit})" for f, limit in zip(reason.flags, limits, strict=True)]
    return "; ".join(told) or reason.words


def client_page(record: RunRecord, client: str, thresholds: bool = False) -> tuple[str, list[str]]:
    """The whole file, and its words."""
    sentences, rounds = tell_client(record, client, thresholds)
    made = TEMPLATES.get_template("client.html.jinja").render(
        title=f"Client {client} in run {record.run.id}",
        policy=policy([]),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        sentences=sentences,
        rounds=rounds,
        to_do=TO_DO if rounds else (),
    )
    return made, [*sentences, *(f"Round {t}, {state}: {why}." for t, state, why in rounds)]
