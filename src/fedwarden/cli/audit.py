"""``fedwarden audit``: what the others would see of a planned change of one's data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .. import sim
from ..audit.answer import Answer, words
from ..core.errors import require
from ..store.record import RunRecord
from . import Interrupted
from .common import LOG, AsJson, Force, Home, Quiet, Settings, emit, hint, out, progress, reader, safe, vacant
from .show import tell

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def audit(
    file: Annotated[
        Path, typer.Argument(help="A scenario with a table [audit], as in examples/audit.toml.", show_default=False)
    ],
    settings: Settings = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the answer as one HTML file; also rehearses what would help."),
    ] = None,
    force: Force = False,
    resume: Annotated[
        str | None, typer.Option(help="Continue this audit, which was interrupted.", metavar="RUN", show_default=False)
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a planned change of one client's data and say what the other clients could tell of it.

    Every other client observes the shared model round after round, as it could in a real federation. Over several
    seeds, the change is compared with no change and with fresh samples of the same distribution: the change itself
    shows only if it can be told from both. The answer is that it shows, that it does not, or that so few seeds cannot
    tell. It is recorded as a run of the workspace, and nothing leaves this machine.
    """
    plan = sim.change_audit.load_plan(file, settings or ())
    if output:
        write = require("fedwarden.report.html", "dashboard", "a report")
        vacant(output, force)
    run, found = follow(plan, home, resume, output is not None, quiet, _again(file, settings or (), output))
    if output:
        with reader(home) as ledger:
            output.write_text(write.page(RunRecord.read(ledger, run)), encoding="utf-8")
    if as_json:
        return emit({"run": run, **found.table(), "answer": words(found)})
    tell(found)
    out.print(f"\nrecorded as run {run}" + (f", written to {safe(str(output))}" if output else ""))
    hint(*_next(found, file, run), folder=home)
    return None


def follow(
    plan: sim.change_audit.AuditPlan, home: Path | None, resume: str | None, measured: bool, quiet: bool, again: str
) -> tuple[int, Answer]:
    """Rehearse with a progress bar; ``again`` is the command that goes on after an interrupt."""
    total, run, told = plan.audit.seeds * (3 if measured else 1), 0, set[int]()  # three: two mitigations as well
    with progress(quiet) as bar:
        task = bar.add_task("audit", total=total, status="")

        def on_start(number: int, done: int) -> None:
            nonlocal run
            run = number
            bar.update(task, description=f"audit, run {run}", completed=done)

        def on_round(number: int, branch: str, t: int) -> None:
            bar.update(task, completed=number, status=f"{branch or 'before the change'}, round {t}")
            if bar.disable and not quiet and number not in told:  # a log file
                told.add(number)
                LOG.info("audit: rehearsal %d of %d", number + 1, total)

        try:
            found = sim.change_audit.record(plan, home, resume, on_round, on_start, measured)
            return run, found
        except KeyboardInterrupt:
            where = "" if home is None else f" --home {shlex.quote(str(home))}"
            raise Interrupted(f"interrupted; continue with: {again} --resume {run}{where}") from None


def _again(file: Path, settings: Sequence[str], output: Path | None) -> str:
    asked = [*(part for s in settings for part in ("--set", s)), *(("-o", str(output)) if output else ())]
    return shlex.join(["fedwarden", "audit", str(file), *asked])


def _next(found: Answer, file: Path, run: int) -> list[str]:
    again = f"fedwarden audit {shlex.quote(str(file))}"
    said = found.itself().values()
    commands = [f"fedwarden report {run}  # the same with a figure, as one file to pass on"]
    if "cannot tell" in said:
        enough = max(sim.change_audit.AuditConfig.model_fields["seeds"].default, found.reach.needed, found.seeds + 5)
        commands.insert(0, f"{again} --set audit.seeds={enough}  # more seeds, which can tell more")
    elif "shows" in said and not found.measures:
        commands.insert(0, f"{again} -o audit.html  # what would help as well, in a file to pass on")
    return commands
