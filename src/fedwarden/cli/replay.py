"""``fedwarden replay``: what another guard would have decided on the recorded signals."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import sim
from ..core.notes import Note
from ..core.registry import describe
from ..guard.config import guard_table
from ..sim.recorded import truth_of
from ..store.story import TOLD, distinct_notes, rounds_by_note
from ..store.word import said_in
from .common import (
    AsJson,
    Home,
    Imports,
    RunNumber,
    Settings,
    bring,
    emit,
    notes_as_tables,
    out,
    reader,
    safe,
    table,
)

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="replay")
def command(
    run: RunNumber,
    rule: Annotated[str | None, typer.Option(help="Another rule for every watch; see fedwarden list rule.")] = None,
    history: Annotated[str | None, typer.Option(help="Another history for every watch.")] = None,
    policy: Annotated[str | None, typer.Option(help="Another policy.")] = None,
    preset: Annotated[str | None, typer.Option(help="Another guard altogether; the other options change it.")] = None,
    settings: Settings = None,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Decide again from what a run recorded, without training: which clients would have been excluded, and when.

    `--set` takes what a `[guard]` table takes; `rule.`, `history.` and `start_round` go to every watch, as in
    `--set rule.alpha=0.01`. This is a what-if on recorded signals: the model, and what the clients sent, stay those
    of the recorded run, and a client that was excluded in it has no signals afterwards.
    """
    bring(imports)
    with reader(home) as ledger:
        found = ledger.run(run)
        records, said = ledger.records(found.id), said_in(ledger, found.id)
    parts = [f"{kind}={name}" for kind, name in (("history", history), ("rule", rule), ("policy", policy)) if name]
    changed = [*parts, *(settings or ())]
    warden, rounds = sim.whatif.decide_again(found, records, changed, preset, said)
    changes, truth = sim.whatif.compare(records, rounds), truth_of(found)
    notes = [(r.round, note) for r in rounds for note in r.notes]
    if as_json:
        return emit(
            {
                "run": found.id,
                "name": found.name,
                "guard": guard_table(warden),
                "clients": [{**vars(c), "attacker": None if truth is None else c.client in truth} for c in changes],
                "notes": notes_as_tables(rounds_by_note(notes)),
            }
        )
    guard = ", ".join([f"the preset {preset}" if preset else "its own guard", *changed])
    out.print(f"[bold]run {found.id}[/]  {safe(found.name)}, replayed with {safe(guard)}")
    if any(c.recorded or c.replayed for c in changes):
        _table(changes, truth)
    else:
        out.print("No client is excluded or in doubt either way, so there is nothing to compare.")
        if describe(warden.policy)["name"] == "observe":
            out.print(
                "The policy 'observe' keeps all clients in the model: --policy quarantine shows which ones the same "
                "flags would exclude."
            )
    _limits(changes, distinct_notes(notes))
    return None


def _table(changes: list[sim.whatif.Change], truth: set[str] | None) -> None:
    """Every client, before and after."""
    shown = table(
        "\nclient",
        "excluded or in\ndoubt (recorded)",
        "excluded or in\ndoubt (replayed)",
        "\nattacker",
        "",
        left=(0, 4),
    )
    for c in changes:
        before, after = ("-" if t is None else str(t) for t in (c.recorded, c.replayed))
        remark = f"no signals from round {c.unseen_from} on" if c.unseen_from and c.replayed is None else ""
        known = "?" if truth is None else "yes" if c.client in truth else "no"
        shown.add_row(safe(c.client), before, after, known, remark, style="bold" if before != after else None)
    out.print(shown)
    differ = sum(c.recorded != c.replayed for c in changes)
    out.print(f"\n{differ} of {len(changes)} clients are treated differently." if differ else "\nThe same decisions.")


def _limits(changes: list[sim.whatif.Change], notes: dict[Note, list[int]]) -> None:
    """What the replayed guard warns of, and what a replay cannot know."""
    for note, rounds in ((note, rounds) for note, rounds in notes.items() if note.kind not in TOLD):
        out.print(f"[yellow]warning[/] from round {rounds[0]}: {safe(str(note))}")
    out.print(
        "A what-if on recorded signals: nothing was trained, the model stays that of the recorded run.", style="dim"
    )
    gone = [c.client for c in changes if c.unseen_from]
    if gone:
        who = ", ".join(gone)
        out.print(f"The recorded run stopped asking {safe(who)}: no signals after the exclusion.", style="dim")
