"""``fedwarden show``: one run in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..core.explain import explain
from ..core.types import RoundRecord
from ..sim.recorded import SIMULATORS, truth_of
from ..sim.scenario import AttackConfig
from ..store.digest import ClientDigest, digest, distinct_notes, note_kind, why
from ..store.ledger import Ledger, Run
from .common import AsJson, Home, RunNumber, emit, hint, number, out, table

COLUMNS = 12  # accuracies in a row

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def show(
    run: RunNumber,
    round: Annotated[int | None, typer.Option("--round", help="Show one round in place of the run.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """One run: configuration in short, accuracy by round, and each client's scores, weight and exclusion.

    Rejected replies and the guard's warnings follow, each with its rounds. `--round` shows every client's signal,
    score and weight in that round.
    """
    with Ledger(home, create=False) as ledger:
        found = ledger.run(run)
        records = [ledger.record(found.id, round)] if round is not None else ledger.records(found.id)
    truth = truth_of(found)
    if as_json:
        return emit(_as_json(found, records, truth) if round is None else _round_json(found, records[0]))
    if round is not None:
        return _show_round(found, records[0], truth)
    _head(found, records, truth)
    if records:
        _accuracies(records)
        _clients(records, digest(records), truth)
        _notes(records)
    commands = []
    if found.state != "done" and found.engine in SIMULATORS:
        commands.append(f"fedwarden run --resume {found.id}  # continue where it stopped")
    if any(r.watches for r in records):
        commands.append(f"fedwarden replay {found.id} --rule gesd  # what another rule would have decided")
        commands.append(f"fedwarden show {found.id} --round {records[-1].round}  # every client in one round")
    hint(*commands, folder=home)
    return None


def _head(run: Run, records: Sequence[RoundRecord], truth: set[str] | None) -> None:
    out.print(f"[bold]run {run.id}[/]  {escape(run.name)}  [bold]{run.state}[/]")
    for key, value in _config(run, truth).items():
        out.print(f"  [dim]{key:<9}[/]{escape(value)}")
    out.print(f"  [dim]rounds   [/]{len(records)} of {run.config.get('rounds', '?')}")


def _config(run: Run, truth: set[str] | None) -> dict[str, str]:
    """The configuration in a few words; a run of another engine shows what it has."""
    config = run.config
    if run.engine not in SIMULATORS:
        return {"engine": run.engine}
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
        shown["attacks"] += f": clients {', '.join(sorted(truth, key=_order))}"
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


def _accuracies(records: Sequence[RoundRecord]) -> None:
    step = -(-len(records) // COLUMNS)
    picked = [r for i, r in enumerate(records) if (i + 1) % step == 0 or r is records[-1] or i == 0]
    shown = table("\nround", *(f"\n{r.round}" for r in picked))
    for name, title in (("accuracy", "clean accuracy"), ("clients_accuracy", "clients' own")):
        if any(name in r.metrics for r in picked):
            shown.add_row(title, *(f"{r.metrics.get(name, float('nan')):.3f}" for r in picked))
    if shown.row_count:
        out.print(shown)


def _clients(records: Sequence[RoundRecord], clients: Sequence[ClientDigest], truth: set[str] | None) -> None:
    watches = list(dict.fromkeys(w.name for r in records for w in r.watches))
    titles = [f"\n{w}\nscore / limit" for w in watches]
    heads = ["\n\nclient", "\nrounds\ntaken part", *titles, "\nlast\nweight", "\nexcluded\nin round", "\n\nwhy"]
    shown = table(*heads, *(["\n\nattacker"] if truth is not None else []), left=(0, len(heads) - 1, len(heads)))
    for c in sorted(clients, key=lambda c: _order(c.client)):
        pairs = [f"{number(c.scores.get(w))} / {number(c.thresholds.get(w))}" for w in watches]
        gone = "-" if c.excluded_in is None else str(c.excluded_in)
        row = [c.client, str(c.rounds), *pairs, f"{c.weight:.3f}", gone, c.reason]
        row += [] if truth is None else ["yes" if c.client in truth else "no"]
        shown.add_row(*map(escape, row), style="red" if c.excluded_in is not None else None)
    out.print(shown)
    by_round = {r.round: r for r in records}
    for c in clients:
        if c.excluded_in is not None and (words := explain(by_round[c.excluded_in]).get(c.client)):
            out.print(f"[red]excluded[/] client {escape(c.client)} in round {c.excluded_in}: {escape(words)}")
        for reason, rounds in _grouped(c.rejected).items():
            out.print(f"[yellow]rejected[/] client {escape(c.client)} in {_rounds(rounds)}: {escape(reason)}")


def _notes(records: Sequence[RoundRecord]) -> None:
    for note, rounds in distinct_notes(records, note_kind).items():
        out.print(f"[yellow]warning[/] in {_rounds(rounds)}: {escape(note)}")


def _show_round(run: Run, record: RoundRecord, truth: set[str] | None) -> None:
    metrics = "  ".join(f"{name} {number(value)}" for name, value in record.metrics.items())
    out.print(f"[bold]run {run.id}[/]  {escape(run.name)}  [bold]round {record.round}[/]  {metrics}")
    titles = [f"\n{w.name}\n{part}" for w in record.watches for part in ("signal", f"score > {number(w.threshold)}")]
    heads = ["\n\nclient", "\n\nexamples", *titles, "\n\nweight", "\n\nflagged"]
    shown = table(*heads, *(["\n\nattacker"] if truth is not None else []))
    for i, client in enumerate(record.client_ids):
        values = [number(float(v)) for w in record.watches for v in (w.signal[i], w.scores[i])]
        row = [client, f"{record.num_examples[i]:g}", *values, f"{record.weights[i]:.3f}"]
        row += ["yes" if record.flagged[i] else "no"]
        row += [] if truth is None else ["yes" if client in truth else "no"]
        shown.add_row(*map(escape, row), style="red" if record.weights[i] == 0 else None)
    out.print(shown)
    for client, words in explain(record).items():
        out.print(f"[red]flagged[/] client {escape(client)}: {escape(words)}")
    for rejection in record.rejected:
        out.print(f"[yellow]rejected[/] client {escape(rejection.client_id)}: {escape(rejection.reason)}")
    for note in record.notes:
        out.print(f"[yellow]warning[/] {escape(note)}")
    out.print(f"excluded after this round: {escape(', '.join(record.excluded)) or 'nobody'}")


def _as_json(run: Run, records: Sequence[RoundRecord], truth: set[str] | None) -> dict[str, Any]:
    return {
        "run": run.id,
        "name": run.name,
        "state": run.state,
        "engine": run.engine,
        "config": run.config,
        "versions": run.versions,
        "summary": run.summary,
        "attackers": None if truth is None else sorted(truth, key=_order),
        "metrics": {r.round: dict(r.metrics) for r in records},
        "clients": [asdict(c) for c in digest(records)],
        "notes": distinct_notes(records),
    }


def _round_json(run: Run, record: RoundRecord) -> dict[str, Any]:
    reasons = {c: why(record, i) for i, c in enumerate(record.client_ids) if record.flagged[i]}
    return {"run": run.id, "name": run.name, **asdict(record), "flagged_by": reasons, "explained": explain(record)}


def _grouped(reasons: Any) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for round, reason in reasons.items():
        grouped.setdefault(reason, []).append(round)
    return grouped


def _rounds(rounds: Sequence[int]) -> str:
    return f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"


def _order(client: str) -> tuple[int, str]:
    """Numbered clients by number, others by name."""
    return (int(client), "") if client.isdigit() else (10**9, client)
