"""``fedwarden show``: one run in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.types import RoundRecord
from ..core.words import number, rounds_of
from ..sim.recorded import SIMULATORS, recorded_scenario, truth_of
from ..sim.scenario import ASKED, AttackConfig, load_modules
from ..store.contribution import contributions
from ..store.explain import explain
from ..store.ledger import Run
from ..store.overview import ClientRow, client_rows, distinct_notes, rounds_by_note
from ..store.record import RunRecord
from ..store.series import Series, client_order
from .common import AsJson, Home, Imports, RunNumber, emit, hint, notes_as_tables, out, reader, safe, table

COLUMNS = 12  # accuracies in a row
MOST = 10  # clients that are told of one by one

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def show(
    run: RunNumber,
    round: Annotated[int | None, typer.Option("--round", help="Show one round in place of the run.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every watch of every client, not only the worst.")] = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """One run: configuration in short, accuracy by round, and each client's worst watch, weight and exclusion.

    Rejected replies and the guard's warnings follow, each with its rounds. `--round` shows every client's signal,
    score and weight in that round.
    """
    load_modules(imports or (), ASKED)
    with reader(home) as ledger:
        if round is not None:
            found = ledger.run(run)
            return _one_round(found, ledger.record(found.id, round), as_json)
        told = RunRecord.read(ledger, run)
    return emit(_as_json(told)) if as_json else _show(told, home, every)


def _show(told: RunRecord, home: Path | None, every: bool) -> None:
    run, series = told.run, told.series
    truth = truth_of(run)
    out.print(f"[bold]run {run.id}[/]  {safe(run.name)}  [bold]{run.state}[/]")
    for key, value in _config(run, truth).items():
        out.print(f"  [dim]{key:<9}[/]{safe(value)}")
    out.print(f"  [dim]rounds   [/]{len(series)} of {run.config.get('rounds', '?')}")
    commands = []
    if run.state != "done" and run.engine in SIMULATORS:
        commands.append(f"fedwarden run --resume {run.id}  # continue where it stopped")
    if len(series):
        _accuracies(series)
        _clients(list(series.watches), client_rows(series, told.reasons), truth, every)
        _stood_out(series)
        _contributions(series)
        for note, rounds in distinct_notes(series.notes).items():
            out.print(f"[yellow]warning[/] in {rounds_of(rounds)}: {safe(str(note))}")
        commands.append(f"fedwarden report {run.id}  # the same with figures, as one file to pass on")
    if series.watches:
        commands.append(f"fedwarden replay {run.id} --rule gesd  # what another rule would have decided")
        commands.append(f"fedwarden show {run.id} --round {series.rounds[-1]}  # every client in one round")
    hint(*commands, folder=home)


def _config(run: Run, truth: set[str] | None) -> dict[str, str]:
    """The configuration in a few words; a run of another engine shows what it has."""
    if run.engine not in SIMULATORS:
        return {"engine": run.engine}
    config = recorded_scenario(run).model_dump(mode="json")  # with the defaults of keys that it lacks
    data, train, guard = config["data"], config["train"], config["guard"]
    usual = {name: field.default for name, field in AttackConfig.model_fields.items()}
    attacks = [_part({k: v for k, v in a.items() if k == "name" or v != usual.get(k)}) for a in config["attacks"]]
    shown = {
        "data": f"{_part(data['dataset'])}, {data['clients']} clients, {_part(data['partition'])}",
        "model": _part(config["model"]),
        "training": f"{train['optimizer']} {train['lr']:g}, {train['epochs']} epochs, batches of {train['batch_size']}",
        "attacks": "; ".join(attacks) or "none",
        "guard": guard["preset"] + "".join(f", {k} {_part(v)}" for k, v in guard.items() if _given(k, v)),
        "seed": str(config["seed"]),
    }
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


def _accuracies(series: Series) -> None:
    step = -(-len(series) // COLUMNS)
    picked = [i for i in range(len(series)) if (i + 1) % step == 0 or i in (0, len(series) - 1)]
    shown = table("\nround", *(f"\n{series.rounds[i]}" for i in picked))
    for name, title in (("accuracy", "clean accuracy"), ("clients_accuracy", "clients' own"), ("loss", "test loss")):
        if name in series.metrics and (name != "loss" or "accuracy" not in series.metrics):
            shown.add_row(title, *(f"{series.metrics[name][i]:.3f}" for i in picked))
    if shown.row_count:
        out.print(shown)


def _clients(watches: Sequence[str], clients: Sequence[ClientRow], truth: set[str] | None, every: bool) -> None:
    titles = [f"\n{safe(w)}\nscore / limit" for w in watches] if every else ["\nnearest\nlimit", "\nscore\n/ limit"]
    titles = titles if watches else []
    heads = ["\n\nclient", "\nrounds\ntaken part", *titles, "\nlast\nweight", "\nexcluded\nin round"]
    shown = table(*heads, *(["\n\nattacker"] if truth is not None else []), left=(0, len(heads)))
    for c in clients:
        picked = watches if every or not watches else [c.worst or watches[0]]
        pairs = [f"{number(c.scores.get(w))} / {number(c.thresholds.get(w))}" for w in picked]
        pairs = pairs if every or not watches else [picked[0], *pairs]
        gone = "-" if c.excluded_in is None else str(c.excluded_in)
        row = [c.client, str(c.rounds), *pairs, f"{c.weight:.3f}", gone]
        row += [] if truth is None else ["yes" if c.client in truth else "no"]
        shown.add_row(*map(safe, row), style="red" if c.excluded_in is not None else None)
    out.print(shown)
    for c in clients:
        if c.excluded_in is not None:
            what = "suspended" if c.suspended else "excluded"
            out.print(f"[red]{what}[/] client {safe(c.client)} in round {c.excluded_in}: {safe(str(c.reason))}")
        for reason, rounds in rounds_by_note(c.rejected.items()).items():
            out.print(f"[yellow]rejected[/] client {safe(c.client)} in {rounds_of(rounds)}: {safe(str(reason))}")


def _stood_out(series: Series) -> None:
    """Who was flagged and stayed: in how many rounds and by which watches, the most often first."""
    by_watch = {w.name: w.flagged.sum(axis=0).tolist() for w in series.watches.values()}
    counts = {c: {name: k[j] for name, k in by_watch.items()} for j, c in enumerate(series.clients)}
    rounds = dict(zip(series.clients, series.flagged.sum(axis=0).tolist(), strict=True))
    stayed = sorted((c for c in series.clients if rounds[c] and c not in series.excluded_in), key=lambda c: -rounds[c])
    for client in stayed[:MOST]:
        by = sorted((w for w, k in counts[client].items() if k), key=lambda w: -counts[client][w])
        words = ", ".join(f"{w} ({counts[client][w]})" for w in by)
        out.print(
            f"[yellow]stood out[/] client {safe(client)} in {rounds[client]} of {len(series)} rounds: {safe(words)}"
        )
    if len(stayed) > MOST:
        out.print(f"[yellow]stood out[/] {len(stayed) - MOST} more, in fewer rounds")


def _contributions(series: Series) -> None:
    """Who helps the model, the most helpful first."""
    found = sorted(contributions(series).items(), key=lambda pair: -pair[1].mean)
    if found:
        shown = table("client", "rounds", "contribution, on the server's samples", left=(0, 2))
        for client, contribution in found:
            shown.add_row(safe(client), str(contribution.rounds), str(contribution))
        out.print(shown)


def _one_round(run: Run, record: RoundRecord, as_json: bool) -> None:
    if as_json:
        told = {
            "rejected": [
                {"client_id": r.client_id, "reason": str(r.reason), **r.reason.table()} for r in record.rejected
            ],
            "notes": [{"note": str(note), **note.table()} for note in record.notes],
            "explained": {client: str(reason) for client, reason in explain(record).items()},
        }
        return emit({"run": run.id, "name": run.name, **asdict(record), **told})
    truth = truth_of(run)
    metrics = "  ".join(f"{safe(name)} {number(value)}" for name, value in record.metrics.items())
    out.print(f"[bold]run {run.id}[/]  {safe(run.name)}  [bold]round {record.round}[/]  {metrics}")
    titles = [
        f"\n{safe(w.name)}\n{part}" for w in record.watches for part in ("signal", f"score > {number(w.threshold)}")
    ]
    heads = ["\n\nclient", "\n\nexamples", *titles, "\n\nweight", "\n\nflagged"]
    shown = table(*heads, *(["\n\nattacker"] if truth is not None else []))
    for i, client in enumerate(record.client_ids):
        values = [number(float(v)) for w in record.watches for v in (w.signal[i], w.scores[i])]
        row = [client, f"{record.num_examples[i]:g}", *values, f"{record.weights[i]:.3f}"]
        row += ["yes" if record.flagged[i] else "no"]
        row += [] if truth is None else ["yes" if client in truth else "no"]
        shown.add_row(*map(safe, row), style="red" if record.weights[i] == 0 else None)
    out.print(shown)
    for client, reason in explain(record).items():
        out.print(f"[red]flagged[/] client {safe(client)}: {safe(str(reason))}")
    for rejection in record.rejected:
        out.print(f"[yellow]rejected[/] client {safe(rejection.client_id)}: {safe(str(rejection.reason))}")
    for note in record.notes:
        out.print(f"[yellow]warning[/] {safe(str(note))}")
    out.print(f"excluded after this round: {safe(', '.join(record.excluded)) or 'nobody'}")
    return None


def _as_json(told: RunRecord) -> dict[str, Any]:
    run, series, truth = told.run, told.series, truth_of(told.run)
    return {
        "run": run.id,
        "name": run.name,
        "state": run.state,
        "engine": run.engine,
        "config": run.config,
        "versions": run.versions,
        "summary": run.summary,
        "attackers": None if truth is None else client_order(list(truth)),
        "metrics": {int(t): {k: v[i] for k, v in series.metrics.items()} for i, t in enumerate(series.rounds)},
        "clients": [
            {
                **asdict(c),
                "reason": str(c.reason or ""),
                "rejected": {t: str(reason) for t, reason in c.rejected.items()},
            }
            for c in client_rows(series, told.reasons)
        ],
        "contributions": {c: {**asdict(x), "words": str(x)} for c, x in contributions(series).items()},
        "notes": notes_as_tables(rounds_by_note(series.notes)),
    }
