"""The benches of ``fedwarden bench`` beside ``attacks``: defences, long runs, honest clients that differ, ..."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from fedwarden import sim
from fedwarden import studies as fw_studies
from fedwarden.cli.bench import run_jobs
from fedwarden.cli.common import AsJson, Home, Settings, emit, out
from fedwarden.core.words import count
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.training import limits
from fedwarden.store.ledger import home

from . import studies

DATA = "digits or mnist; backdoors: mnist, mnist-cnn, writers, writers-cnn. By default the first."
OWN = "With a scenario: an aggregator or a preset, module:name of your own, name(option=value), or a TOML file."
GPU_PROCESSES = 4  # runs at a time where they share a device
COMMON = ("seeds", "rounds", "processes", "folder", "as_json", "workspace")
BENCHES: Mapping[str, tuple[tuple[str, ...], str]] = {  # its module in studies: its own options, in words
    "defences": (
        ("file", "data", "defence", "attack", "settings", "device"),
        "Every defence against every attack: of the grid, or those you name on your own scenario.",
    ),
    "long-runs": (
        ("data", "case", "settings"),
        "Run without attackers for many rounds, and count how often `auto` excludes an honest client for good.",
    ),
    "judges": (
        ("case", "device"), "Run settings that others have published, and write their results beside ours."
    ),
    "backfed": (
        ("defence", "case", "settings", "device"),
        "Train as the authors of BackFed did (`--case training`), then run their rules and backdoor from there.",
    ),
    "backdoors": (
        ("data", "defence", "attack"),
        "How often a trigger works after a run, with the guard and with rules made against backdoors.",
    ),
    "framing": (
        ("data", "attack"), "Let attackers try to have an honest client excluded, and count successes."
    ),
    "asynchronous": (
        ("data", "defence", "attack"),
        "Fold every few replies of clients of different speed, under attack, and compare `auto` with FedBuff.",
    ),
    "groups": (
        ("data", "attack"),
        "Show the guard sums of random groups only, as under secure aggregation, and see what it still finds.",
    ),
    "different": (
        ("data", "defence", "case", "clients", "settings"),
        "Let honest clients differ in data, training or updates, and compare every defence with FedAvg.",
    ),
    "jurors": (
        ("data", "attack"),
        "Let three named clients judge, and count the attackers and the honest clients that are excluded.",
    ),
    "adapters": (
        ("case",),
        "Let clients train low-rank adapters in different ways, or attack, and combine adapters in different ways.",
    ),
    "evaders": (
        ("defence", "case"),
        "Let attackers come and go, drift, forge buffers or change names; one of four sites flips labels.",
    ),
    "devices": (
        ("defence", "attack", "case", "clients"),
        "Ask a few of thousands of clients in each round, and see what attackers among them cost.",
    ),
}  # fmt: skip

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


def bench(what: str) -> Callable[..., None]:
    """The command of a bench, with the options that go with it."""
    own, says = BENCHES[what]

    def command(
        file: Annotated[
            Path | None,
            typer.Argument(help="Your scenario, as for run; without it, the grid of the results.", show_default=False),
        ] = None,
        data: Annotated[str | None, typer.Option(help=DATA)] = None,
        seeds: Annotated[
            int | None, typer.Option(min=1, help="Repetitions of every cell; by default those of the page.")
        ] = None,
        rounds: Annotated[
            int | None, typer.Option(min=1, help="Rounds of every run; by default those of the page.")
        ] = None,
        defence: Annotated[list[str] | None, typer.Option(help=f"Only this defence; may be repeated. {OWN}")] = None,
        attack: Annotated[list[str] | None, typer.Option(help="Only this attack or group; may be repeated.")] = None,
        case: Annotated[
            list[str] | None, typer.Option(help="Only this case, or those with these words; may be repeated.")
        ] = None,
        clients: Annotated[
            list[int] | None,
            typer.Option(min=2, help="So many clients in place of a case's own numbers; may be repeated."),
        ] = None,
        device: Annotated[str | None, typer.Option(help="Where to train, as cuda; by default cpu.")] = None,
        settings: Settings = None,
        processes: Annotated[
            int | None, typer.Option(min=1, help="Runs at a time; by default, and at most, one per core.")
        ] = None,
        folder: Annotated[Path | None, typer.Option("--out", "-o", help="Where the page and the pictures go.")] = None,
        as_json: AsJson = False,
        workspace: Home = None,
    ) -> None:
        asked = studies.plan.Asked(
            data, seeds, rounds, defence or (), attack or (), case or (), settings or (), device, clients or (), file,
            folder,
        )  # fmt: skip
        plan = getattr(studies, what.replace("-", "_")).plan(asked)
        play(plan, processes or (GPU_PROCESSES if device else None), folder, as_json, workspace or home())

    every = inspect.signature(command, eval_str=True).parameters
    kept = [p for name, p in every.items() if name in (*own, *COMMON)]
    vars(command)["__signature__"] = inspect.Signature(kept)  # typer shows these options and no others
    command.__doc__ = f"{says}\n\nEvery result is kept as it comes: what was cut off goes on where it was."
    return command


for _name in BENCHES:
    app.command(_name)(bench(_name))


def play(plan: studies.plan.Plan, processes: int | None, folder: Path | None, as_json: bool, place: Path) -> None:
    """Run what has no result yet, write the page and the pictures, and say what came out."""
    jobs = [fw_studies.runner.Job(plan.name, cell, table, plan.run) for cell, table in plan.cells]
    if len(fw_studies.runner.kept(place, jobs)) < len(jobs):
        for scenario in plan.tried:
            sim.federation.Federation(load_scenario(scenario))  # what is wrong is said now, before anything is run
    found = run_jobs(plan.name, jobs, place, limits.processes(processes))
    target = folder or place / "bench" / plan.name
    target.mkdir(parents=True, exist_ok=True)
    path = target / plan.file
    path.write_text(plan.page(found) + "\n", encoding="utf-8")
    pictures = plan.pictures(found, target)
    if as_json:
        drawn = {"pictures": [str(p) for p in pictures]} if plan.pictures is not studies.plan.no_pictures else {}
        return emit({"runs": len(found), "page": str(path), **drawn, **plan.counts(found)})
    print(plan.told(found))
    kind = "picture" if all(p.suffix == ".svg" for p in pictures) else "file"
    drawn_too = f" and {count(len(pictures), kind)} beside it" if pictures else ""
    runs = fw_studies.runner.results_file(place, plan.name)
    out.print(f"\n{count(len(found), 'run')}; page in {path}{drawn_too}, runs in {runs}", soft_wrap=True)
    return None
