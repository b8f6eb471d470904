"""``fedwarden show``: one run in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from ..audit.answer import FRESH, STILL, Answer, words
from ..core.notes import DOUBTS
from ..core.types import RoundRecord
from ..core.words import abbreviated, count, number, rounds_of
from ..sim.recorded import SIMULATORS, answered, as_known, plugins_of, truth_of, unanswered
from ..sim.scenario import AttackConfig
from ..store import outbox
from ..store.conclusion import observed
from ..store.health import WATCH as HARM
from ..store.ledger import Run
from ..store.record import RunRecord
from ..store.round import RoundStory
from ..store.series import accuracy_words, client_order
from ..store.story import Client, Standing, Story, rounds_by_note
from ..store.word import NOTES, UNSAID, Said, absent, latest
from .common import LOG, AsJson, Home, Imports, RunNumber, bring, emit, hint, notes_as_tables, out, reader, safe, table

COLUMN = 7  # characters that an accuracy takes in its row
WIDEST = 120  # characters that such a row takes at most
SCORE = 22  # characters that a score and its limit take at most
NEAR = 0.5  # of a limit: a client above it is shown
MOST = 10  # clients that are told of one by one

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def show(
    run: RunNumber,
    round: Annotated[int | None, typer.Option("--round", help="Show one round in place of the run.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every client and every watch, not only those near a limit.")
    ] = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """One run: the clients excluded, in doubt or flagged and why, accuracy by round, and the clients near a limit.

    Rejected replies and the guard's warnings follow, each with its rounds. `--round` shows every client's signal,
    score and weight in that round.
    """
    bring(imports)
    with reader(home) as ledger:
        if round is not None:
            found = ledger.run(run)
            return _one_round(found, ledger.record(found.id, round), as_json)
        told = RunRecord.read(ledger, run, *(() if every or as_json else ((HARM,), ())))
        pending = outbox.told(ledger, told.run.id)
        if as_json:
            emit(_as_json(told))
        else:
            _show(told, home, every)
    for line in pending:
        LOG.warning("%s", line)
    return None


def tell(found: Answer) -> None:
    """Print an answer."""
    for sentence in words(found):
        out.print(safe(sentence))
    out.print()
    out.print(table_of(found))


def table_of(found: Answer) -> Table:
    """One row per source, those that tell the change best first."""
    nulls = [f"\nAUROC against\n{null}" for null in (STILL, FRESH)]
    shown = table("\n\nsource", *nulls, "clients\nthat see\nthe change", "\nfrom\nround")
    for column in shown.columns[1:]:
        column.no_wrap = True
    for name, *rest in found.rows():
        brief = (cell.replace(" to ", "-").replace("1.00", "1.0") for cell in rest)  # fits 80 columns
        shown.add_row(safe(name.replace(",", "")), *brief)
    return shown


def _show(told: RunRecord, home: Path | None, every: bool) -> None:
    run, story, series = told.run, told.story, told.series
    truth = truth_of(run) or None  # data of one's own may hold attackers that no scenario names
    out.print(f"[bold]run {run.id}[/]  {safe(run.name)}  [bold]{run.state_in_words}[/]")
    if run.error:
        out.print(f"[red]failed[/]: {safe(run.error)}")
    if found := answered(run):
        tell(found)
        hint(f"fedwarden report {run.id}  # the same with a figure, as one file to pass on", folder=home)
        return
    for sentence in [*(story.sentences if len(series) else ()), *(unanswered(run) or observed(told.observations))]:
        out.print(safe(sentence))
    for key, value in _config(run, truth).items():
        out.print(f"  [dim]{key:<9}[/]{safe(value)}")
    if len(series) or not told.observations:  # an auditor alone guards no round
        out.print(f"  [dim]rounds   [/]{len(series)} of {run.config.get('rounds', '?')}")
    _word(told.said)
    commands = []
    if run.state != "done" and run.engine in SIMULATORS:
        commands.append(f"fedwarden run --resume {run.id}  # continue it")
    if len(series):
        _accuracies(story)
        _clients(story, truth, every, None if run.state == "done" else run.id)
        _contributions(story, every)
        if every:
            _health(story)
        for note, rounds in story.warnings(every).items():
            if note.kind not in NOTES.values():  # told above
                out.print(f"[yellow]warning[/] in {rounds_of(rounds)}: {safe(str(note))}")
        commands.append(f"fedwarden report {run.id}  # the same with figures, as one file to pass on")
    if story.watches:
        commands.append(f"fedwarden replay {run.id} --rule gesd  # what another rule would have decided")
        commands.append(f"fedwarden show {run.id} --round {series.rounds[-1]}  # every client in one round")
    hint(*commands, folder=home, imports=plugins_of(run))


def _word(said: Sequence[Said]) -> None:
    """What the operator said, in order, and from which round on it holds."""
    if not said:
        return
    shown = table("the operator", "client", "from round", "by", "reason", left=(0, 1, 3, 4))
    for s in (s for s in said if s.round or not s.carried):
        when = "next" if s.round is None else str(s.round)
        shown.add_row(*map(safe, (s.kind, s.client or "-", when, s.by, s.reason or UNSAID)))
    if shown.row_count:
        out.print(shown)
    if missing := absent(said):
        out.print(missing)


def _config(run: Run, truth: set[str] | None) -> dict[str, str]:
    """The configuration in a few words; a run of another engine shows what it has."""
    if run.engine not in SIMULATORS:
        return {"engine": run.engine}
    scenario, unknown = as_known(run)
    if scenario is None:  # another version may have recorded it
        return {key: _part(value) for key, value in run.config.items()}
    config = scenario.model_dump(mode="json")  # with the defaults of keys that it lacks
    data, train, guard = config["data"], config["train"], config["guard"]
    usual = {name: field.default for name, field in AttackConfig.model_fields.items()}
    attacks, differences = (
        [_part({k: v for k, v in a.items() if k == "name" or v != usual.get(k)}) for a in config[which]]
        for which in ("attacks", "differences")
    )
    shown = {
        "data": f"{_part(data['dataset'])}, {count(data['clients'], 'client')}, {_part(data['partition'])}",
        "model": _part(config["model"]),
        "training": f"{train['optimizer']} {train['lr']:g}, {count(train['epochs'], 'epoch')}, "
        f"batches of {train['batch_size']}",
        **({"differ": "; ".join(differences)} if differences else {}),
        "attacks": "; ".join(attacks) or "none",
        "guard": guard["preset"] + "".join(f", {k} {_part(v)}" for k, v in guard.items() if _given(k, v)),
        "seed": str(config["seed"]),
    }
    if unknown:
        shown["unknown"] = ", ".join(f"{key} {_part(value)}" for key, value in unknown.items())
    if truth:
        shown["attacks"] += f": clients {', '.join(client_order(list(truth)))}"
    return shown


def _given(key: str, value: Any) -> bool:
    return key not in ("preset", "admission") and value not in (None, {}, [])


def _part(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_part(v) for v in value)
    if not isinstance(value, dict):
        return str(value)
    options = ", ".join(f"{k} {_part(v)}" for k, v in value.items() if k != "name" and v not in (None, ""))
    name = str(value.get("name", ""))
    return f"{name} ({options})" if options and name else name or options


def _accuracies(story: Story) -> None:
    series = story.series
    titles = {"accuracy": "", "clients_accuracy": "clients' own", "worst_accuracy": "worst client", "loss": "test loss"}
    rows = [name for name in titles if name in series.metrics and (name != "loss" or "accuracy" not in series.metrics)]
    if not rows:
        return
    titles["accuracy"] = accuracy_words(series.metrics) if "accuracy" in rows else ""
    room = max(2, (min(out.width, WIDEST) - max(len(titles[name]) for name in rows)) // COLUMN)
    picked = np.unique(np.linspace(0, len(series) - 1, min(room, len(series))).round().astype(int)).tolist()
    shown = table("\nround", *(f"\n{series.rounds[i]}" for i in picked))
    for name in rows:
        shown.add_row(titles[name], *(f"{series.metrics[name][i]:.3f}" for i in picked))
    out.print(shown)


def _clients(story: Story, truth: set[str] | None, every: bool, run: int | None) -> None:
    """The clients that are worth a word or near a limit, or all of them, and why they are."""
    watches, clients = list(story.watches), [*story.clients.values()]
    picked = [c for c in clients if every or not watches or c.standing or max(c.near.values(), default=0.0) >= NEAR]
    names = {c.client: c.client for c in clients} if every else abbreviated([c.client for c in clients])
    heads = ["\nclient", "\nrounds", *(["nearest\nlimit", "last score\n/ limit"] if watches else [])]
    heads += ["last\nweight", "\nstate"]
    shown = table(*heads, *(["\nattacker"] if truth is not None else []), left=(0, len(heads) - 1, len(heads)))
    shown.columns[2].no_wrap = bool(watches)  # the name of a watch stays whole
    for c in picked:
        worst = next(iter([*c.near, *watches]), "")
        row = [names[c.client], str(c.rounds), *([worst, _score(c, worst)] if watches else []), f"{c.weight:.3f}"]
        row += [c.state, *([] if truth is None else ["yes" if c.client in truth else "no"])]
        shown.add_row(*map(safe, row), style=_colour(c.standing))
    if picked:
        out.print(shown)
    for some in _fitting(watches, max(map(len, names.values()), default=0)) if every else ():
        shown = table("\nclient", *(f"{safe(w)}\nscore / limit" for w in some))
        for c in picked:
            shown.add_row(safe(names[c.client]), *(_score(c, w) for w in some), style=_colour(c.standing))
        out.print(shown)
    if len(picked) < len(clients):
        others = count(len(clients) - len(picked), "other client")
        out.print(f"[dim]{others if picked else count(len(clients), 'client')} below half of every limit: --all[/]\n")
    for client, standing in list(story.standings.items())[: None if every else MOST]:
        out.print(f"[{_colour(standing)}]{safe(story.told(client, run))}[/]")
    if len(story.standings) > MOST and not every:
        out.print(f"{len(story.standings) - MOST} more with --all")
    for c in clients:
        for reason, rounds in rounds_by_note(c.rejected.items()).items():
            out.print(f"[yellow]rejected[/] client {safe(c.client)} in {rounds_of(rounds)}: {safe(reason)}")


def _score(client: Client, watch: str) -> str:
    return f"{number(client.scores.get(watch))} / {number(client.thresholds.get(watch))}"


def _fitting(watches: Sequence[str], taken: int) -> Iterator[Sequence[str]]:
    """The watches in groups whose columns fit beside one that takes so many characters."""
    some: list[str] = []
    for watch in watches:
        if some and taken + sum(2 + max(len(w), SCORE) for w in [*some, watch]) > out.width:
            yield some
            some = []
        some.append(watch)
    if some:
        yield some


def _colour(standing: Standing | None) -> str:
    return "" if standing is None else "red" if standing.out else "yellow"


def _contributions(story: Story, every: bool) -> None:
    """How much each client helps the model: on the server's samples or, where all is shown, by its direction."""
    found = story.contributions
    title = "contribution, on the server's samples" if found else "contribution, by direction of updates"
    if every and not found:
        found = {c: x for c in story.clients if (x := story.contribution(c)) is not None}
    if found:
        shown = table("client", "rounds", title, left=(0, 2))
        for client in (c for c in story.clients if c in found):
            shown.add_row(safe(client), str(found[client].rounds), str(found[client]))
        out.print(shown)


def _health(story: Story) -> None:
    """How each client takes part and what it tells of itself; clients without a reply are told of by their rounds."""
    found = story.health
    names = list(dict.fromkeys(n for h in found.values() for n in h.told))
    measured = any(np.isfinite(h.seconds) for h in found.values())
    if not names and not measured and all(len(h.answered) == h.asked for h in found.values()):
        return
    heads = ["\nclient", "answered\n/ asked", "\nlast", "no\nanswer", "\nerrors", *(["\nseconds"] if measured else [])]
    shown = table(*heads)
    for client, h in found.items():
        row = [client, f"{len(h.answered)} / {h.asked}", str(h.last or "-"), str(len(h.silent)), str(len(h.broken))]
        row += [number(h.seconds)] if measured else []
        shown.add_row(*map(safe, row), style="yellow" if h.silent_since else None)
    out.print(shown)
    for some in _fitting(names, max(map(len, found), default=0)):
        shown = table("client", *(f"{safe(name)}" for name in some), left=(0,))
        for client, h in found.items():
            shown.add_row(safe(client), *(number(h.told.get(name)) for name in some))
        out.print(shown)
    for client in found:
        if odd := story.at_odds(client):
            out.print(f"[yellow]client {safe(client)}[/]: {safe(odd)}")


def _one_round(run: Run, record: RoundRecord, as_json: bool) -> None:
    here = RoundStory(record)
    reasons = {c: here.reason(c) for c, state in here.states.items() if c in here.flagged or c in here.doubts}
    if as_json:
        told = {
            "rejected": [
                {"client_id": r.client_id, "reason": str(r.reason), **r.reason.table()} for r in record.rejected
            ],
            "notes": [{"note": str(note), **note.table()} for note in record.notes],
            "states": here.states,
            "explained": {client: str(reason) for client, reason in reasons.items()},
        }
        return emit({"run": run.id, "name": run.name, **asdict(record), **told})
    truth = truth_of(run) or None  # data of one's own may hold attackers that no scenario names
    metrics = ", ".join(f"{safe(name.replace('_', ' '))} {number(value)}" for name, value in record.metrics.items())
    out.print(f"[bold]run {run.id}[/]  {safe(run.name)}  [bold]round {record.round}[/]  {metrics or 'no metrics'}")
    styles = ["red" if weight == 0 else None for weight in record.weights]
    shown = table("client", "examples", "weight", "state", *(["attacker"] if truth is not None else []), left=(0, 3))
    for i, client in enumerate(record.client_ids):
        row = [client, f"{record.num_examples[i]:g}", f"{record.weights[i]:.3f}", here.states[client]]
        row += [] if truth is None else ["yes" if client in truth else "no"]
        shown.add_row(*map(safe, row), style=styles[i])
    out.print(shown)
    by_name = {w.name: w for w in record.watches}
    for some in _fitting(list(by_name), max(map(len, record.client_ids), default=0)):
        limits = (f"{safe(w)}\nsignal score > {number(by_name[w].threshold)}" for w in some)
        shown = table("\nclient", *limits)
        for i, client in enumerate(record.client_ids):
            pairs = [(float(by_name[w].signal[i]), float(by_name[w].scores[i])) for w in some]
            cells = (f"{number(signal)} {number(score):>9}" for signal, score in pairs)
            shown.add_row(safe(client), *cells, style=styles[i])
        out.print(shown)
    for reason in reasons.values():
        out.print(f"[red]{safe(reason)}[/]")
    for rejection in record.rejected:
        out.print(f"[yellow]rejected[/] client {safe(rejection.client_id)}: {safe(rejection.reason)}")
    for note in (note for note in record.notes if note.kind not in DOUBTS):
        out.print(f"[yellow]warning[/] {safe(note)}")
    out.print(f"excluded after this round: {safe(', '.join(record.excluded)) or 'none'}")
    return None


def _as_json(told: RunRecord) -> dict[str, Any]:
    run, story, series, truth = told.run, told.story, told.series, truth_of(told.run)
    excluded_in = series.excluded_in
    return {
        "run": run.id,
        **{key: value for key, value in asdict(run).items() if key not in ("id", "created", "rounds")},
        "verdict": [*story.sentences, *story.closing(run.id, run.state == "done")],
        "word": {name: sorted(v) if isinstance(v, frozenset) else v for name, v in asdict(latest(told.said)).items()},
        "said": [asdict(said) for said in told.said],
        "answer": run.summary.get("answer"),
        "auditors": observed(told.observations),
        "attackers": None if truth is None else client_order(list(truth)),
        "metrics": {int(t): {k: v[i] for k, v in series.metrics.items()} for i, t in enumerate(series.rounds)},
        "clients": [
            {
                **asdict(client),
                "excluded_in": excluded_in.get(name),
                "reason": str(story.reason(name)),
                "rejected": {t: str(reason) for t, reason in client.rejected.items()},
                "verdict": str(client.standing or ""),
                "health": {**asdict(health), "words": str(health)},
            }
            for (name, client), health in zip(story.clients.items(), story.health.values(), strict=True)
        ],
        "contributions": {
            c: {**asdict(x), "words": str(x)} for c in series.clients if (x := story.contribution(c)) is not None
        },
        "notes": notes_as_tables(rounds_by_note(series.notes)),
    }
