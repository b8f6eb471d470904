"""``fedwarden tune``: PID coefficients for a scenario."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

import fedwarden as fw

from .. import sim
from ..core.config import to_toml
from ..core.words import count, percent
from ..guard.config import AdmissionConfig, guard_table, spell_guard
from ..sim.scenario import load_scenario
from .common import AsJson, Settings, emit, out, progress, safe, table

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(name="tune")
def command(
    file: Annotated[Path, typer.Argument(help="The scenario, with its attackers.", show_default=False)],
    trials: Annotated[int, typer.Option(min=1, help="Settings to try.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings to record, from the scenario's seed on.")] = 3,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Search for the PID coefficients and the threshold that find the scenario's attackers best.

    Tunes the scenario's own guard where that has a PID history, else the preset `pid_made`.
    Trains once per seed with every client in the model (policy `observe`), then replays the recorded distances with
    other coefficients: Optuna's TPE, as in the PID-MADE paper. The aim is the F1 of the excluded clients; ties go to
    fewer client-rounds of attackers in the model. Prints the best as a TOML table to paste. Needs the extra `tune`.
    """
    scenario = sim.tune.to_tune(load_scenario(file, settings or ()))
    warden = scenario.guard.build()
    began = perf_counter()
    with progress() as bar:
        task = bar.add_task("training", total=seeds * scenario.rounds, status="")
        runs = []
        for seed in range(scenario.seed, scenario.seed + seeds):
            bar.update(task, status=f"seed {seed}")
            runs.append(sim.tune.observe(scenario, seed, lambda record: bar.advance(task)))
        trained = perf_counter() - began
        task = bar.add_task("replaying", total=trials, status="")
        tuned = sim.tune.tune(runs, warden, trials, scenario.seed, lambda: bar.advance(task))
    seconds = {"training": round(trained, 2), "replaying": round(perf_counter() - began - trained, 2)}
    if as_json:
        return emit(_as_json(tuned, seconds))
    grades = ("\nF1", "attackers\ncaught", "honest\nexcluded", "attacker-rounds\nin the model")
    shown = table("\nsetting", *(f"\n{name}" for name in tuned.defaults), *grades)
    out.print(f"[bold]{safe(scenario.name)}[/]  {safe(spell_guard(warden))}")
    shown.add_row("given", *(f"{v:.3g}" for v in tuned.defaults.values()), *_grade(tuned.before))
    shown.add_row("best", *(f"{v:.3g}" for v in tuned.best.values()), *_grade(tuned.after), style="bold")
    out.print(shown)
    out.print(
        f"\n{count(seeds, 'seed')} trained in {seconds['training']:.1f} s, "
        f"{count(trials, 'setting')} replayed in {seconds['replaying']:.1f} s."
    )
    if tuned.best == tuned.defaults:
        out.print("Nothing better than the given setting was found.")
    out.print("Paste in place of the scenario's \\[guard], then check it with fedwarden run:\n")
    print(as_toml(tuned.warden))
    return None


def as_toml(warden: fw.Warden) -> str:
    """A warden's ``[guard]`` table as TOML."""
    made = guard_table(warden)
    del made["secret"]  # a scenario draws from its seed
    if made["admission"] == AdmissionConfig().model_dump():
        del made["admission"]
    return to_toml({"guard": made})


def _grade(grade: sim.tune.Grade) -> list[str]:
    return [
        f"{grade.f1:.3f}",
        f"{grade.caught}/{grade.attackers}",
        str(grade.wronged),
        f"{grade.let_in} ({percent(grade.let_in / max(grade.attacks, 1))})",
    ]


def _as_json(tuned: sim.tune.Tuned, seconds: dict[str, float]) -> dict[str, object]:
    return {
        "given": {"values": tuned.defaults, **asdict(tuned.before)},
        "best": {"values": tuned.best, **asdict(tuned.after)},
        "guard": guard_table(tuned.warden),
        "toml": as_toml(tuned.warden),
        "seconds": seconds,
    }
