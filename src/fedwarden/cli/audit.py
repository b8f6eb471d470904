"""``fedwarden audit``: what the others would see of a planned change of one's data."""

from __future__ import annotations

import shlex
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.table import Table

from ..core.words import count, percent
from ..sim.change_audit import (
    CHANGE,
    FRESH,
    PARTIAL,
    STILL,
    Answer,
    AuditConfig,
    AuditPlan,
    Source,
    answer,
    as_table,
    load_plan,
)
from .common import LOG, AsJson, Quiet, Settings, emit, hint, out, progress, safe, table

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def audit(
    file: Annotated[
        Path, typer.Argument(help="A scenario with a table [audit], as in examples/audit.toml.", show_default=False)
    ],
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a planned change of one client's data and say what the other clients could tell of it.

    Every other client observes the shared model round after round, as it could in a real federation. Over several
    seeds, the change is compared with no change and with fresh samples of the same distribution: the change itself
    shows only if it can be told from both. The answer is that it shows, that it does not, or that so few seeds cannot
    tell. Nothing is recorded and nothing leaves this machine.
    """
    plan = load_plan(file, settings or ())
    found = _follow(plan, quiet)
    sentences = words(found)
    if as_json:
        return emit({**as_table(found), "answer": sentences})
    for sentence in sentences:
        out.print(safe(sentence))
    out.print()
    out.print(table_of(found))
    if "cannot tell" in found.change().values():
        enough = max(AuditConfig().seeds, found.reach.needed, plan.audit.seeds + 5)
        hint(f"fedwarden audit {shlex.quote(str(file))} --set audit.seeds={enough}  # more seeds, which can tell more")
    elif not plan.audit.ramp and "shows" in found.new().values():
        later = max(plan.scenario.rounds, plan.audit.start + 6)
        again = f"fedwarden audit {shlex.quote(str(file))} --set audit.ramp=4 --set rounds={later}"
        hint(f"{again}  # the same change, spread over five rounds")
    return None


def words(found: Answer) -> list[str]:
    """The answer in sentences: what would show, to how many, from which round on, how surely."""
    plan = found.plan
    many, seeds = len(plan.observers), plan.audit.seeds
    options = ", ".join(f"{k} = {v}" for k, v in plan.audit.change.options.items())
    head = (
        f"Planned: {plan.audit.change.name}{f' ({options})' if options else ''} changes {percent(found.exchanged)} of "
        f"client {plan.client}'s samples from round {plan.audit.start} on; {count(many, 'other')} "
        f"look{'s' * (many == 1)} on; {seeds} seeds."
    )
    change, new = found.change(), found.new()
    shift, anything = (sum(v == "shows" for v in told.values()) for told in (change, new))
    lines = [head]
    if found.reach.auroc is None:
        lines.append(_powerless(found))
    elif shift:
        lines.append(
            f"The change itself would show to {shift} of {many} clients, from round {found.first()} on, most "
            f"surely in {_surest(found, FRESH)} against fresh samples of the same distribution."
        )
        lines += _classes(found)
    elif "cannot tell" not in change.values():
        lines.append(
            f"The change itself would not show to any of {many} clients: no source tells it from fresh samples, and "
            f"{_found_from(found)}."
        )
    if anything:
        lines.append(
            f"That your data are new would show to {anything} of {many} clients, most surely in "
            f"{_surest(found, STILL)} against no change."
        )
    elif "cannot tell" not in new.values():
        lines.append("Nor would it show that your data are new.")
    lines += _limits(found)
    before, after = found.accuracy[STILL], found.accuracy[CHANGE]
    lines.append(
        f"Clean accuracy after {plan.scenario.rounds} rounds: {percent(before)} without it, {percent(after)} with it."
    )
    return lines


def _powerless(found: Answer) -> str:
    """Why these seeds cannot tell, and how many could."""
    reach, audit = found.reach, found.plan.audit
    return (
        f"Cannot tell what would show: even where its AUROC is 1, with {audit.seeds} seeds a source reaches p = "
        f"{reach.least_p:.2g} at best, and the level is {reach.level:.2g} ({audit.alpha:g} shared by "
        f"{count(len(found.sources), 'source')}). At least {reach.needed} seeds could tell."
    )


def _limits(found: Answer) -> list[str]:
    """What the answer leaves open: the clients for whom a test and its interval disagree, and those who see nothing."""
    told = list(found.change().values())
    unsure, blind = told.count("cannot tell"), told.count("does not show")
    lines = []
    if unsure and found.reach.auroc is not None:
        lines.append(
            f"For {unsure} of {len(told)} clients it is open whether the change itself shows: a test finds it, "
            f"but the interval of its AUROC includes one half. More seeds could tell."
        )
    if 0 < blind < len(told):
        lines.append(
            f"The change itself would not show to {blind} of {len(told)} clients: no source tells it, and "
            f"{_found_from(found)}."
        )
    return lines


def _found_from(found: Answer) -> str:
    reach = found.reach
    return (
        f"with {found.plan.audit.seeds} seeds one of AUROC {reach.auroc:.2f} or more would have been found with "
        f"probability {reach.power:g}"
    )


def _surest(found: Answer, null: str) -> str:
    """The source with the highest median AUROC over the observers, with that of its median observer."""

    def middle(source: Source) -> float:
        return median(v[null].auroc for v in source.verdicts.values())

    best = max(found.sources, key=middle)
    return f"{best.name}: AUROC {_auroc(best, null)}"


def _classes(found: Answer) -> list[str]:
    """The classes that the answers name."""
    named = max((s for s in found.sources if s.moved), key=lambda s: len(s.moved), default=None)
    if named is None:
        return []
    up, down = ([c for c, z in named.moved.items() if (z > 0) == way] for way in (True, False))
    parts = [f"{word} for {', '.join(sorted(cs, key=int))}" for word, cs in (("higher", up), ("lower", down)) if cs]
    return [f"It shows which classes moved: outputs are {' and '.join(parts)}."]


def table_of(found: Answer) -> Table:
    """One row per source, those that tell the change best first."""
    nulls = [n for n in (STILL, FRESH, PARTIAL) if n in next(iter(found.sources[0].verdicts.values()))]
    many = len(found.plan.observers)
    heads = [*(f"\nAUROC against\n{n}" for n in nulls), "clients\nthat see\nthe change", "\nfrom\nround"]
    shown = table("\n\nsource", *heads)
    for column in shown.columns[1:]:
        column.no_wrap = True
    for s in sorted(found.sources, key=lambda s: -median(v[FRESH].auroc for v in s.verdicts.values())):
        told = [sight.shift for sight in s.sees.values()]
        seen_by = f"{told.count('shows')} of {many}" if set(told) != {"cannot tell"} else "cannot tell"
        first = min((t for t in s.first.values() if t is not None), default=None)
        shown.add_row(
            s.name.replace(",", ""), *(_brief(s, n) for n in nulls), seen_by, "-" if first is None else str(first)
        )
    return shown


def _auroc(source: Source, null: str) -> str:
    """The AUROC of the median observer, with its interval."""
    found = source.against(null)
    return "{} ({} to {})".format(*(f"{x:.2f}".removeprefix("0") for x in (found.auroc, found.low, found.high)))


def _brief(source: Source, null: str) -> str:
    """The same in 13 characters, for a table that fits 80 columns."""
    return _auroc(source, null).replace(" to ", "-").replace("1.00", "1.0")


def _follow(plan: AuditPlan, quiet: bool) -> Answer:
    """Rehearse with a progress bar."""
    total = plan.audit.seeds
    with progress(quiet) as bar:
        task = bar.add_task("audit", total=total, status="")
        told: set[int] = set()

        def on_round(number: int, branch: str, t: int) -> None:
            bar.update(task, completed=number, status=f"{branch or 'before the change'}, round {t}")
            if bar.disable and not quiet and number not in told:  # a log file
                told.add(number)
                LOG.info("audit: seed %d of %d", number + 1, total)

        return answer(plan, on_round)
