"""A run in plain sentences, for those who decide and do not read scores."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import numpy as np

from ..audit import answer
from ..core.words import count, listed, percent, rounds_of
from ..sim.recorded import answered, truth_of, unanswered
from ..store.conclusion import fates, observed
from ..store.record import RunRecord
from ..store.series import accuracy_words
from ..store.word import absent

NAMED = 5  # reasons and warnings that are told one by one


def tell(record: RunRecord) -> list[str]:
    """What happened, what became of the model, which clients were left out and why, and what else one should know."""
    if found := answered(record.run):
        return answer.words(found)
    said = [*(str(s) for s in record.said if not s.carried or s.round), *filter(None, [absent(record.said)])]
    last = [sentence for part in (_truth, _contributions, _silent, _rejections, _warnings) for sentence in part(record)]
    seen = unanswered(record.run) or observed(record.observations)
    return [*_state(record), *_model(record), *_clients(record), *said, *last, *seen]


def day(moment: float) -> str:
    """A time as a date, in UTC.

    >>> day(0.0)
    '1 January 1970'
    """
    found = datetime.fromtimestamp(moment, UTC)
    return f"{found.day} {found:%B %Y}"


def _state(record: RunRecord) -> list[str]:
    run, done = record.run, len(record.series)
    if not done and record.observations:
        return [f"Run {run.id} ({run.name}), begun on {day(run.created)}, holds what auditors observed, and no rounds."]
    planned = run.config.get("rounds")
    of = f"{done} of {count(planned, 'round')}" if isinstance(planned, int) else count(done, "round")
    how = {
        "done": f"is complete: {of}",
        "running": f"is running: {of} so far",
        "interrupted": f"has been {run.state_in_words}, after {of}",
        "failed": f"failed after {of}" + (f" ({run.error})" if run.error else ""),
    }[run.state]
    who = f" with {count(len(record.series.clients), 'client')}" if record.series.clients else ""
    return [f"Run {run.id} ({run.name}), begun on {day(run.created)}, {how}{who}."]


def _model(record: RunRecord) -> list[str]:
    metrics = record.series.metrics
    name = next((n for n in ("accuracy", *metrics) if n in metrics and "acc" in n.lower()), None)
    values = metrics[name] if name else np.zeros(0)
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        told = "No accuracy was recorded." if len(record.series) else "No round has been recorded."
        return [] if record.observations and not len(record.series) else [told]
    last, best = known[-1], known[int(np.argmax(values[known]))]
    what = accuracy_words(metrics, str(name))
    text = f"The model's {what} is {percent(values[last])} after round {record.series.rounds[last]}"
    rest = f"; its best was {percent(values[best])} in round {record.series.rounds[best]}"
    worst = metrics.get("worst_accuracy", values * np.nan)[last]
    least = f"; the worst client's is {percent(worst)}" if np.isfinite(worst) else ""
    return [f"{text}{rest if best != last else ''}{least}."]


def _clients(record: RunRecord) -> list[str]:
    """What became of the clients, the reasons of the gravest, and which are different without harm shown."""
    story = record.story
    if not len(story.series):
        return []
    run = None if record.run.state == "done" else record.run.id
    told = [story.told(client, run) for client in list(story.standings)[:NAMED]]
    rest = len(story.standings) - len(told)
    more = f"The reasons of {count(rest, 'more client')} are in the table."
    return [str(story), *told, *([more] if rest else [])]


def _truth(record: RunRecord) -> list[str]:
    attackers, story = truth_of(record.run), record.story
    if attackers is None or not (story.judged or story.standings):
        return []
    return [f"This was a simulation, so the truth is known. {' '.join(fates(story, attackers))}"]


def _contributions(record: RunRecord) -> list[str]:
    found = record.story.contributions
    who = {kind: [c for c, x in found.items() if x.kind == kind] for kind in ("helps", "harms")}
    if not found:
        return []
    head = f"On the server's samples, {len(who['helps'])} of {count(len(found), 'client')} measurably helped the model"
    return [head + (f"; {listed(who['harms'])} harmed it." if who["harms"] else "; none harmed it.")]


def _silent(record: RunRecord) -> list[str]:
    since: dict[int, list[str]] = {}
    for client, health in record.story.health.items():
        if health.silent_since is not None:
            since.setdefault(health.silent_since, []).append(client)
    told = [f"{listed(who)} since round {t}" for t, who in sorted(since.items())]
    return [f"Asked but silent: {listed(told)}."] if told else []


def _rejections(record: RunRecord) -> list[str]:
    refused = record.series.rejected
    if not refused:
        return []
    clients = {c for _, c, _ in refused}
    reason, times = Counter(reason for _, _, reason in refused).most_common(1)[0]
    usual = "" if times == len(refused) == 1 else f", {'each' if times == len(refused) else 'most often'}"
    verb = "was" if len(refused) == 1 else "were"
    head = f"{count(len(refused), 'reply')} of {count(len(clients), 'client')} {verb} rejected"
    return [f"{head}{usual}: {reason}."]


def _warnings(record: RunRecord) -> list[str]:
    told = [f"Warning in {rounds_of(rounds)}: {note}." for note, rounds in record.story.warnings(every=False).items()]
    told[NAMED:] = [f"{count(len(told) - NAMED, 'more warning')} are in the table of warnings."] if told[NAMED:] else []
    return told
