"""``fedwarden bench``: defences and attacks, one's own configuration, long runs, settings of others, backdoors."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..core.config import override, read_toml
from ..core.errors import ConfigError, nearest
from ..sim.federation import Federation
from ..sim.scenario import load_scenario
from ..sim.training import limits
from ..store.ledger import home
from ..studies import attack_cases, attack_suite, backdoors, defences, judges, long_runs
from ..studies.pictures import drawing
from ..studies.runner import Cell, Table, collect, results, results_file
from ..studies.tables import Result, Results
from .common import AsJson, Home, Settings, emit, hint, out, progress, safe, table
from .demo import SCENARIO

Run = Callable[[Table], Result]

GOES_WITH = {
    "file": ("attacks",), "data": ("defences", "long-runs", "backdoors"), "defence": ("defences", "backdoors"),
    "attack": ("defences", "backdoors"),
    "case": ("attacks", "long-runs", "judges"), "set": ("attacks", "long-runs"), "device": ("judges",),
}  # fmt: skip

GPU_PROCESSES = 4  # runs at a time where they share a device

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="bench")
def command(
    what: Annotated[
        Literal["defences", "attacks", "long-runs", "judges", "backdoors"],
        typer.Argument(
            help="The grid of defences, attacks on a configuration of your own, honest clients alone, the settings of "
            "others, or backdoors."
        ),
    ] = "defences",
    file: Annotated[
        Path | None,
        typer.Argument(help="attacks: the scenario, as for run; by default the demo's.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help=f"defences, long-runs: {' (default) or '.join(defences.SETTINGS)}; backdoors: "
            f"{', '.join(backdoors.SOURCES)} (default: the first)."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Repetitions of every cell; by default 5 from seed 0 on, or 3 from the scenario's; "
            f"long-runs: {long_runs.SEEDS}; judges: {judges.SEEDS}.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Rounds of every run; by default 30, or the scenario's; long-runs: {long_runs.ROUNDS}; judges: as "
            "published.",
        ),
    ] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help="defences, backdoors: only this one; may be repeated.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="only this attack, or (defences) those that are `usual` or `newer`; may be repeated."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="attacks, long-runs: only this case, or those with these words; judges: only this one. May be "
            "repeated."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="judges: where clients train, as cuda; by default cpu.")] = None,
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

    Every result is kept as it comes: a grid that was cut off goes on where it was, and more seeds only add to it.
    """
    place = workspace or home()
    _check(what, file=file, data=data, defence=defence, attack=attack, case=case, set=settings, device=device)
    if what == "attacks":
        chosen = [*(settings or ()), *(() if rounds is None else (f"rounds={rounds}",))]
        return _attacks(file, chosen, seeds or 3, case or (), limits.processes(processes), folder, as_json, place)
    if what == "long-runs":
        return _long_runs(
            data or "digits", seeds or long_runs.SEEDS, rounds or long_runs.ROUNDS, case or (), settings or (),
            limits.processes(processes), folder, as_json, place,
        )  # fmt: skip
    if what == "backdoors":
        return _backdoors(
            data or "mnist", seeds or backdoors.SEEDS, rounds or backdoors.ROUNDS, defence or (), attack or (),
            limits.processes(processes), folder, as_json, place,
        )  # fmt: skip
    if what == "judges":
        some = limits.processes(processes or (GPU_PROCESSES if device else None))
        return _judges(case or (), seeds or judges.SEEDS, rounds, device or "cpu", some, folder, as_json, place)
    return _defences(
        data or "digits", seeds or 5, rounds or 30, defence, attack, limits.processes(processes), folder, as_json, place
    )


def _check(what: str, **given: object) -> None:
    """Refuse options of another bench."""
    for name, value in given.items():
        if value is not None and what not in GOES_WITH[name]:
            spelt = "a scenario file" if name == "file" else f"--{name}"
            raise ConfigError(f"{spelt} goes with fedwarden bench {' or '.join(GOES_WITH[name])}")


def _check_data(data: str) -> None:
    if data not in defences.SETTINGS:
        raise ConfigError(f"there are settings for {', '.join(defences.SETTINGS)}; got {data!r}")


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


def _defences(
    data: str,
    seeds: int,
    rounds: int,
    defence: Sequence[str] | None,
    attack: Sequence[str] | None,
    processes: int,
    folder: Path | None,
    as_json: bool,
    place: Path,
) -> None:
    _check_data(data)
    for kind, given, known in (
        ("defence", defence, defences.DEFENCES),
        ("attack", attack, ("none", *defences.ATTACKS, *defences.GROUPS)),
    ):
        for name in given or ():
            if name not in known:
                raise ConfigError(f"there is no {kind} {name!r}; {nearest(name, known)}")
    attacks = defences.chosen(attack or ())
    drawing()  # say now, not after hours, that pictures cannot be drawn
    wanted = [
        (cell, table)
        for cell, table in defences.cells(range(seeds), data, rounds)
        if (not defence or cell["defence"] in defence) and (not attack or cell["attack"] in attacks)
    ]
    name = f"defences-{data}-{rounds}"
    found = _run(name, wanted, place, processes)
    target = folder or place / "bench" / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "defences.md").write_text(defences.page(found) + "\n")
    pictures = defences.draw(found, target)
    if as_json:
        emit({"runs": len(found), "page": str(target / "defences.md"), "pictures": [str(p) for p in pictures]})
        return
    print("\n\n".join([defences.verdict(found), defences.safety(found), defences.ranking(found)]))
    out.print(
        f"\n{len(found)} runs; page and {len(pictures)} pictures in {target}, runs in {results_file(place, name)}"
    )


def _long_runs(
    data: str,
    seeds: int,
    rounds: int,
    asked: Sequence[str],
    settings: Sequence[str],
    processes: int,
    folder: Path | None,
    as_json: bool,
    place: Path,
) -> None:
    _check_data(data)
    cases = long_runs.choose(long_runs.cases(data), asked)
    wanted = long_runs.cells(range(seeds), cases, data, rounds, settings)
    for _, scenario in wanted[:2]:  # guarded and not: what is wrong is said now, before anything is run
        Federation(load_scenario(scenario))
    name = long_runs.study_name(data, rounds, settings)
    found = _run(name, wanted, place, processes, long_runs.measure)
    target = folder or place / "bench" / name
    target.mkdir(parents=True, exist_ok=True)
    path = target / ("long-runs.md" if data == "digits" else f"long-runs-{data}.md")
    chosen = [
        word for option, values in (("--case", asked), ("--set", settings)) for v in values for word in (option, v)
    ]
    words = ["fedwarden", "bench", "long-runs", "--data", data, "--seeds", seeds, "--rounds", rounds, *chosen]
    text = long_runs.page(found, cases, data, rounds, shlex.join(map(str, words)))
    path.write_text(text + "\n", encoding="utf-8")
    if as_json:
        counts = {
            str(h): {split: {"excluded": k, "runs": n} for split, (k, n) in long_runs.by_split(found, h).items()}
            for h in long_runs.horizons(rounds)
        }
        return emit({"runs": len(found), "page": str(path), "by_round": counts})
    tables = (long_runs.exclusions, long_runs.costs)
    print("\n\n".join([long_runs.headline(found, rounds), *(of(found, cases, rounds) for of in tables)]))
    out.print(f"\n{len(found)} runs; page in {path}, runs in {results_file(place, name)}", soft_wrap=True)
    return None


def _judges(
    asked: Sequence[str],
    seeds: int,
    rounds: int | None,
    device: str,
    processes: int,
    folder: Path | None,
    as_json: bool,
    place: Path,
) -> None:
    chosen = judges.choose(asked)
    wanted = judges.cells(range(seeds), chosen, rounds, device)
    name = judges.study_name(rounds)
    found = _run(name, wanted, place, processes, judges.measure)
    target = folder or place / "bench" / name
    target.mkdir(parents=True, exist_ok=True)
    path = target / "judges.md"
    options = [("--case", c) for c in asked] + ([("--rounds", rounds)] if rounds else [])
    words = ["fedwarden", "bench", "judges", "--seeds", seeds, *(w for pair in options for w in pair)]
    path.write_text(judges.page(found, chosen, rounds, shlex.join(map(str, words))) + "\n", encoding="utf-8")
    if as_json:
        return emit({"runs": len(found), "page": str(path)})
    print("\n\n".join(f"{judge.title}\n\n{judges.table(found, judge)}" for judge in chosen))
    out.print(f"\n{len(found)} runs; page in {path}, runs in {results_file(place, name)}", soft_wrap=True)
    return None


def _backdoors(
    data: str,
    seeds: int,
    rounds: int,
    defence: Sequence[str],
    attack: Sequence[str],
    processes: int,
    folder: Path | None,
    as_json: bool,
    place: Path,
) -> None:
    wanted = backdoors.cells(range(seeds), data, rounds, defence, attack)
    name = f"backdoors-{data}-{rounds}"
    if len(results(place, name, wanted)) < len(wanted):
        Federation(load_scenario(wanted[0][1]))  # what is wrong is said now, before anything is run
    found = _run(name, wanted, place, processes)
    target = folder or place / "bench" / name
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"backdoors-{data}.md"
    chosen = [
        w for option, values in (("--defence", defence), ("--attack", attack)) for v in values for w in (option, v)
    ]
    words = ["fedwarden", "bench", "backdoors", "--data", data, "--seeds", seeds, "--rounds", rounds, *chosen]
    path.write_text(backdoors.page(found, data, rounds, shlex.join(map(str, words))) + "\n", encoding="utf-8")
    if as_json:
        return emit({"runs": len(found), "page": str(path)})
    print(backdoors.headline(found, data))
    out.print(f"\n{len(found)} runs; page in {path}, runs in {results_file(place, name)}", soft_wrap=True)
    return None
