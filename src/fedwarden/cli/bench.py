"""``fedwarden bench``: defences and attacks, one's own configuration, long runs, honest clients that differ, ..."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..core.config import override, read_toml
from ..core.errors import ConfigError
from ..core.words import count
from ..sim.federation import Federation
from ..sim.scenario import load_scenario
from ..sim.training import limits
from ..store.ledger import home
from ..studies import (
    attack_cases,
    attack_suite,
    backdoors,
    defences,
    different,
    evaders,
    framing,
    groups,
    judges,
    jurors,
    long_runs,
)
from ..studies.plan import Asked, Plan, no_pictures
from ..studies.runner import Cell, Table, collect, results, results_file
from ..studies.tables import Result, Results
from .common import AsJson, Home, Settings, emit, hint, out, progress, safe, table
from .demo import SCENARIO

Run = Callable[[Table], Result]

PLANS: Mapping[str, Callable[[Asked], Plan]] = {
    "defences": defences.plan,
    "long-runs": long_runs.plan,
    "judges": judges.plan,
    "backdoors": backdoors.plan,
    "framing": framing.plan,
    "groups": groups.plan,
    "different": different.plan,
    "jurors": jurors.plan,
    "evaders": evaders.plan,
}
GOES_WITH = {
    "file": ("attacks",), "data": ("defences", "long-runs", "backdoors", "framing", "groups", "different", "jurors"),
    "defence": ("defences", "backdoors", "different", "evaders"),
    "attack": ("defences", "backdoors", "framing", "groups", "jurors"),
    "case": ("attacks", "long-runs", "judges", "different", "evaders"), "set": ("attacks", "long-runs", "different"),
    "device": ("defences", "judges"), "clients": ("different",),
}  # fmt: skip

GPU_PROCESSES = 4  # runs at a time where they share a device

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="bench")
def command(
    what: Annotated[
        Literal[
            "defences",
            "attacks",
            "long-runs",
            "judges",
            "backdoors",
            "framing",
            "groups",
            "different",
            "jurors",
            "evaders",
        ],
        typer.Argument(
            help="The grid of defences, attacks on a configuration of your own, honest clients alone, the settings of "
            "others, backdoors, attackers who want an honest client excluded, groups whose sums alone are seen, "
            "honest clients that differ, jurors, or attackers that evade."
        ),
    ] = "defences",
    file: Annotated[
        Path | None,
        typer.Argument(help="attacks: the scenario, as for run; by default the demo's.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="defences, long-runs, framing, groups, different, jurors: "
            f"{' (default) or '.join(defences.SETTINGS)}; "
            f"backdoors: {', '.join(backdoors.SOURCES)} (default: the first)."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Repetitions of every cell; by default 5 from seed 0 on, or 3 from the scenario's; "
            f"long-runs: {long_runs.SEEDS}; judges: {judges.SEEDS}; groups: {groups.SEEDS}; different: "
            f"{different.SEEDS}; jurors: {jurors.SEEDS}; evaders: {evaders.SEEDS}.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Rounds of every run; by default 30, or the scenario's; long-runs: {long_runs.ROUNDS}; framing: "
            f"{framing.ROUNDS}; different: {different.ROUNDS}; jurors: {jurors.HORIZONS[-1]}; "
            f"evaders: {evaders.ROUNDS}; judges: as published.",
        ),
    ] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="defences, backdoors, different, evaders: only this one; may be repeated.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="only this attack, or (defences) those that are `usual` or `newer`; may be repeated."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="attacks, long-runs, different: only this case, or those with these words; judges, evaders: only this "
            "one. May be repeated."
        ),
    ] = None,
    clients: Annotated[
        list[int] | None,
        typer.Option(min=2, help="different: so many clients in place of a case's own numbers; may be repeated."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="defences, judges: where to train, as cuda; by default cpu.")
    ] = None,
    settings: Settings = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default and most: one per core.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Where the page and the pictures go.")] = None,
    as_json: AsJson = False,
    workspace: Home = None,
) -> None:
    """Run a grid of defences, attacks, shares of attackers and heterogeneity, and write its tables and pictures.

    With `attacks`, run the adversary's suite against your own scenario instead: its attacks are replaced by each case
    in turn, all else is yours. Says how many cases held, and what got through.

    With `long-runs`, let nobody attack for many rounds, and count how often `auto` excludes an honest client for good.

    With `judges`, run settings that others have published, and write their results beside ours.

    With `backdoors`, see how often a trigger works after a run, with the guard and with rules made against backdoors.

    With `framing`, let attackers try to have an honest client excluded, and count how often they get it.

    With `groups`, show the guard sums of random groups only, as under secure aggregation, and see what it still finds.

    With `different`, let honest clients differ in data, training or updates, and compare every defence with FedAvg.

    With `evaders`, let attackers come and go, drift, forge buffers or change names; one of four sites flips labels.

    With `jurors`, let three named clients judge, and count the attackers and the honest clients that are excluded.

    Every result is kept as it comes: a grid that was cut off goes on where it was, and more seeds only add to it.
    """
    place = workspace or home()
    _check(
        what, file=file, data=data, defence=defence, attack=attack, case=case, set=settings, device=device,
        clients=clients,
    )  # fmt: skip
    if what == "attacks":
        chosen = [*(settings or ()), *(() if rounds is None else (f"rounds={rounds}",))]
        return _attacks(file, chosen, seeds or 3, case or (), limits.processes(processes), folder, as_json, place)
    asked = Asked(data, seeds, rounds, defence or (), attack or (), case or (), settings or (), device, clients or ())
    some = limits.processes(processes or (GPU_PROCESSES if device else None))
    return _play(PLANS[what](asked), some, folder, as_json, place)


def _check(what: str, **given: object) -> None:
    """Refuse options of another bench."""
    for name, value in given.items():
        if value is not None and what not in GOES_WITH[name]:
            spelt = "a scenario file" if name == "file" else f"--{name}"
            raise ConfigError(f"{spelt} goes with fedwarden bench {' or '.join(GOES_WITH[name])}")


def _play(plan: Plan, processes: int, folder: Path | None, as_json: bool, place: Path) -> None:
    """Run what has no result yet, write the page and the pictures, and say what came out."""
    if len(results(place, plan.name, plan.cells)) < len(plan.cells):
        for scenario in plan.tried:
            Federation(load_scenario(scenario))  # what is wrong is said now, before anything is run
    found = _run(plan.name, plan.cells, place, processes, plan.run)
    target = folder or place / "bench" / plan.name
    target.mkdir(parents=True, exist_ok=True)
    path = target / plan.file
    path.write_text(plan.page(found) + "\n", encoding="utf-8")
    pictures = plan.pictures(found, target)
    if as_json:
        drawn = {"pictures": [str(p) for p in pictures]} if plan.pictures is not no_pictures else {}
        return emit({"runs": len(found), "page": str(path), **drawn, **plan.counts(found)})
    print(plan.told(found))
    kind = "picture" if all(p.suffix == ".svg" for p in pictures) else "file"
    drawn_too = f" and {count(len(pictures), kind)} beside it" if pictures else ""
    out.print(
        f"\n{count(len(found), 'run')}; page in {path}{drawn_too}, runs in {results_file(place, plan.name)}",
        soft_wrap=True,
    )
    return None


def _run(
    name: str, wanted: Sequence[tuple[Cell, Table]], place: Path, processes: int, run: Run | None = None
) -> Results:
    """Run what has no result yet, with a progress bar."""
    with progress() as bar:
        task = bar.add_task(name, total=len(wanted), status="")
        for done in collect(name, wanted, place, processes, run):
            bar.update(task, completed=done, status=f"{done} of {len(wanted)}")
    return results(place, name, wanted)


def _attacks(
    file: Path | None,
    settings: Sequence[str],
    seeds: int,
    asked: Sequence[str],
    processes: int,
    folder: Path | None,
    as_json: bool,
    place: Path,
) -> None:
    own = {**override(read_toml(file or SCENARIO), settings), "attacks": []}
    scenario = load_scenario(own, folder=file.parent if file else None)
    if scenario.data.own:  # its processes know no folder of a file
        own["data"] = {**own["data"], "folder": scenario.data.folder}
    scenario = Federation(scenario).scenario  # what is wrong with it is said now, before anything is run
    cases = attack_cases.choose(attack_cases.suite(scenario.data.clients, scenario.rounds), asked)
    name, numbers = attack_suite.study_name(scenario), range(scenario.seed, scenario.seed + seeds)
    found = _run(name, attack_suite.cells(cases, own, scenario.rounds, numbers), place, processes, attack_suite.play)
    told = attack_suite.outcomes(cases, found, numbers)
    target = folder or place / "bench" / name
    target.mkdir(parents=True, exist_ok=True)
    path = target / "attacks.md"
    path.write_text(attack_suite.page(told, scenario, seeds) + "\n", encoding="utf-8")
    broken, held, left = attack_suite.ranked(told)
    if as_json:
        counts = {"held": len(held), "did_not_hold": len(broken), "not_run": len(left)}
        listed = [attack_suite.as_json(outcome) for outcome in (*broken, *held, *left)]
        return emit({**counts, "runs": len(found), "seeds": list(numbers), "page": str(path), "cases": listed})
    out.print(attack_suite.headline(told, seeds), style="bold", soft_wrap=True)
    for title, group in (("Did not hold", broken), ("Held", held), ("Not run", left)):
        if group:
            shown = table(*_two_lines(attack_suite.HEADER), title=f"\n{title}", left=(0, len(attack_suite.HEADER) - 1))
            for outcome in group:
                shown.add_row(*map(safe, attack_suite.row(outcome)))
            out.print(shown)
    out.print(f"\n{len(found)} runs; page in {path}, runs in {results_file(place, name)}", soft_wrap=True)
    if worst := next((o.case for o in broken if o.case.attacks), None):
        words = [w for s in (*settings, attack_suite.setting(worst.attacks)) for w in ("--set", s)]
        hint(f"fedwarden run {shlex.join([str(file or SCENARIO), *words])}  # the worst, round by round", folder=place)
    return None


def _two_lines(header: Sequence[str]) -> list[str]:
    """Headings that leave room: the last word on a line of its own, and all of the same height."""
    return ["\n".join(h.rsplit(" ", 1)) if " " in h else f"\n{h}" for h in header]
