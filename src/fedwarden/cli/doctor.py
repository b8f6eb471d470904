"""``fedwarden doctor``: whether a workspace is sound, and what can be saved of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .. import store
from ..core.words import count
from ..sim.recorded import SIMULATORS, as_known, by_version
from ..store.export import draft, write_json
from ..store.ledger import Ledger, LedgerError
from ..store.ledger import home as default_home
from .common import LOG, AsJson, Home, emit, out, safe, vacant

BEYOND = ("checkpoint",)  # what a repair of the ledger cannot mend

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def doctor(
    repair_: Annotated[
        bool,
        typer.Option(
            "--repair", help="Write what can be read to a new ledger; the damaged one is kept beside it, whole."
        ),
    ] = False,
    migrate_: Annotated[
        bool,
        typer.Option(
            "--migrate", help="Bring a ledger of an earlier version up to date; a copy of it is kept beside it."
        ),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="Write what can be read as JSON, one object with all runs.", metavar="FILE"),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Check the workspace: the ledger's file, every run and round in it, every checkpoint; one line a finding.

    Exit code 0: sound, or sound again after `--repair`; notes, such as a run that says `running`, are no faults.
    1: something is damaged. 2: nothing can be read.

    `--repair` deletes nothing: the damaged ledger stays as ledger.sqlite.damaged-1, and rounds that cannot be read
    are left out of the new one and named. Damaged checkpoints stay; `fedwarden run --resume` passes them over.
    """
    folder = home or default_home()
    if migrate_:
        Ledger(folder, create=False).close()
    findings, saved = _examine(folder)
    lost = [f for f in findings if f.fault and f.kind not in BEYOND]
    kept = None
    if export is not None:
        with draft(vacant(export)) as made, open(made, "w", encoding="utf-8") as file:
            file.write('{"runs": [')
            for i, found in enumerate(saved):
                file.write(", " * (i > 0))
                write_json(found.record, file)
            file.write("]}")
    if repair_ and lost:
        kept = store.repair.repair(folder, saved)
        left, saved = _examine(folder)
        findings = [*lost, *(f for f in left if f not in lost)]
        faults = [f for f in left if f.fault]
    else:
        faults = [f for f in findings if f.fault]
    told = _told(faults, saved, kept)
    if as_json:
        emit(
            {
                "folder": str(folder),
                "sound": not faults,
                "findings": [asdict(f) for f in findings],
                "runs": {s.id: len(s.records) for s in saved},
                "damaged_file": None if kept is None else str(kept),
                "conclusion": told,
            }
        )
    else:
        _show(findings, told)
    if export is not None:
        LOG.info("wrote %s", export)
    if faults:
        raise typer.Exit(1)


def _examine(folder: Path) -> tuple[list[store.repair.Finding], list[store.repair.Saved]]:
    try:
        findings, saved = store.repair.examine(folder)
        return findings + [found for s in saved for found in _config(s)], saved
    except LedgerError as error:
        raise LedgerError(f"{error.words}; nothing can be read of it" if error.doctor else error.words) from error


def _config(saved: store.repair.Saved) -> Iterator[store.repair.Finding]:
    """A configuration may be well-formed and yet not all known to this version, which is no fault of the ledger."""
    run = saved.head
    if run is not None and run.engine in SIMULATORS:
        scenario, unknown = as_known(run)
        if scenario is None or unknown:
            what = f"has keys that this version does not know ({', '.join(unknown)})" if scenario else "is no scenario"
            words = f"{by_version(run)}its configuration {what}"
            yield store.repair.Finding("config", words, run.id, fault=False)


def _show(findings: Sequence[store.repair.Finding], told: str) -> None:
    for found in findings:
        style, word = ("red", "damaged") if found.fault else ("yellow", "note")
        where = f"run {found.run}: " if found.run is not None and not found.words.startswith("run ") else ""
        out.print(f"[{style}]{word}[/] {found.kind}: {safe(where + found.words)}")
    out.print(told, markup=False)


def _told(faults: Sequence[store.repair.Finding], saved: Sequence[store.repair.Saved], kept: Path | None) -> str:
    """The conclusion in one line."""
    read = f"{count(len(saved), 'run')} and {count(sum(len(s.records) for s in saved), 'round')}"
    if kept is not None:
        return f"Repaired: {read}; the damaged ledger is kept as {kept.name}."
    if not faults:
        return f"Sound: {read}."
    if all(f.kind in BEYOND for f in faults):
        return f"{count(len(faults), 'fault')}, which no repair can mend; {read} can be read."
    return f"{count(len(faults), 'fault')}; {read} can be read, and fedwarden doctor --repair saves them."
