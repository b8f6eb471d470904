"""``fedwarden bench``: the adversary's suite on a configuration of your own, and what other packages add to it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import sim, studies
from ..core.config import override, read_toml
from ..core.errors import ConfigError
from ..core.words import count
from ..sim.scenario import load_scenario
from ..sim.training import limits
from ..store.ledger import home
from . import RESEARCH, Interrupted
from .common import AsJson, Home, Settings, emit, hint, out, progress, safe, table
from .demo import SCENARIO


class Benches(TyperGroup):
    """The benches of this package, and those of every entry point of the group ``fedwarden.bench``: a typer app."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for entry in entry_points(group="fedwarden.bench"):
            added: Any = typer.main.get_command(entry.load())
            self.commands.update(added.commands)

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        if args[0] not in self.commands and len(self.commands) == 1:
            raise ConfigError(f"there is no bench {args[0]!r} here, only attacks; the others come with {RESEARCH}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Benches, add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Run every attack against your own configuration; defences, backdoors and others come with fedwarden-research.

    Every result is stored at once: an interrupted bench continues where it was, and more seeds add to it.
    """


@app.command()
def attacks(
    file: Annotated[
        Path | None, typer.Argument(help="The scenario, as for run; by default the demo's.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of every case, from the scenario's seed on.")] = 3,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of every run; by default the scenario's.", show_default=False)
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Only this case, or those with these words; may be repeated.")
    ] = None,
    settings: Settings = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default, and at most, one per core.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Where the page goes.")] = None,
    as_json: AsJson = False,
    workspace: Home = None,
) -> None:
    """Run the adversary's suite against your own scenario, and say how many cases held, and what got through.

    The scenario's attacks are replaced by each case in turn, all else is yours.
    """
    place, suite = workspace or home(), studies.attack_suite
    chosen = [*(settings or ()), *(() if rounds is None else (f"rounds={rounds}",))]
    own = {**override(read_toml(file or SCENARIO), chosen), "attacks": []}
    scenario = load_scenario(own, folder=file.parent if file else None)
    if scenario.data.own:  # its processes know no folder of a file
        own["data"] = {**own["data"], "folder": scenario.data.folder}
    scenario = sim.federation.Federation(scenario).scenario  # what is wrong with it is said now, before anything is run
    cases = studies.attack_cases.choose(studies.attack_cases.suite(scenario.data.clients, scenario.rounds), case or ())
    name, numbers = suite.study_name(scenario), range(scenario.seed, scenario.seed + seeds)
    cells = suite.cells(cases, own, scenario.rounds, numbers)
    jobs = [studies.runner.Job(name, cell, run, suite.play) for cell, run in cells]
    found = run_jobs(name, jobs, place, limits.processes(processes))
    told = suite.outcomes(cases, found, numbers)
    target = folder or place / "bench" / name
    target.mkdir(parents=True, exist_ok=True)
    path = target / "attacks.md"
    path.write_text(suite.page(told, scenario, seeds) + "\n", encoding="utf-8")
    broken, held, left = suite.ranked(told)
    if as_json:
        counts = {"held": len(held), "did_not_hold": len(broken), "not_run": len(left)}
        listed = [suite.as_json(outcome) for outcome in (*broken, *held, *left)]
        return emit({**counts, "runs": len(found), "seeds": list(numbers), "page": str(path), "cases": listed})
    out.print(suite.headline(told, seeds), style="bold")
    for title, group in (("Did not hold", broken), ("Held", held), ("Not run", left)):
        if group:
            headings = ["\n".join(h.rsplit(" ", 1)) if " " in h else f"\n{h}" for h in suite.HEADER]
            shown = table(*headings, title=f"\n{title}", left=(0, len(headings) - 1))
            for outcome in group:
                shown.add_row(*map(safe, suite.row(outcome)))
            out.print(shown)
    out.print(
        f"\n{len(found)} runs; page in {path}, runs in {studies.runner.results_file(place, name)}", soft_wrap=True
    )
    if worst := next((o.case for o in broken if o.case.attacks), None):
        words = [w for s in (*chosen, suite.setting(worst.attacks)) for w in ("--set", s)]
        hint(f"fedwarden run {shlex.join([str(file or SCENARIO), *words])}  # the worst, round by round", folder=place)
    return None


def run_jobs(title: str, jobs: Sequence[studies.runner.Job], place: Path, processes: int) -> studies.tables.Results:
    """Run what has no result yet, with a progress bar; the results of all."""
    try:
        with progress() as bar:
            task = bar.add_task(title, total=len(jobs), status="")
            for done in studies.runner.work(jobs, place, processes):
                bar.update(task, completed=done)
    except KeyboardInterrupt:
        runs = f"{len(studies.runner.kept(place, jobs))} of {count(len(jobs), 'run')}"
        raise Interrupted(f"interrupted; {runs} are kept, and the same command continues from there") from None
    return studies.runner.kept(place, jobs)
