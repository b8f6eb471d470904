"""``fedwarden demo``: two attacks, each with plain averaging and behind the guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from ..core.words import percent
from ..sim.scenario import load_scenario
from ..store.record import RunRecord
from .common import AsJson, Home, emit, has, hint, lively, out, safe
from .run import follow

SCENARIO = Path(__file__).parents[1] / "sim" / "demo.toml"
GUARDS = {"none": "plain averaging", "auto": "behind the guard"}
BARS = "▁▂▃▄▅▆▇█"

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@dataclass(frozen=True)
class Act:
    """One attack: what happens, in a sentence, the settings that make it, and the metric that tells how it goes."""

    name: str
    title: str
    metric: str
    words: str
    settings: Sequence[str] = ()


ACTS = (
    Act(
        "sign-flip",
        "Four of 20 clients reverse the sign of their updates and triple their length.",
        "accuracy",
        "accuracy on clean test data, round by round",
    ),
    Act(
        "backdoor",
        "Four of 20 clients teach the model that a white patch makes any digit a 0.",
        "attack_success",
        "how often the patch works, round by round",
        ('attacks=[{name = "backdoor", count = 4}]',),
    ),
)


@app.command()
def demo(
    home: Home = None,
    as_json: AsJson = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print the scenario, to save and change, and stop.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Then compare the first two runs in a browser.")] = False,
) -> None:
    """Twenty clients learn to read digits, and four of them attack: first openly, then with a backdoor.

    Each federation runs twice from the same seed, with plain averaging (preset `none`) and behind the guard (preset
    `auto`), which is not told how many attackers there are. All four runs are recorded in the workspace.
    """
    if toml:
        print(SCENARIO.read_text(encoding="utf-8"), end="")
        return None
    reports = []
    for k, act in enumerate(ACTS, 1):
        if not as_json:
            out.print(f"[bold]{k}. {act.title}[/]\n")
        played = {preset: _play(act, preset, home, as_json) for preset in GUARDS}
        reports += list(played.values())
        if not as_json:
            _show(act, played, home)
    if as_json:
        return emit({"runs": reports})
    return _next([report["run"] for report in reports], home, open_)


def sparkline(values: Sequence[float] | NDArray[np.float64]) -> str:
    """Shares as a row of bars, the highest for 1.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    return "".join(BARS[int(np.clip(round(7 * v + 0.01), 0, 7))] if np.isfinite(v) else " " for v in values)


def _play(act: Act, preset: str, home: Path | None, quiet: bool) -> dict[str, Any]:
    scenario = load_scenario(SCENARIO, [f"name=demo-{act.name}-{preset}", *act.settings, f"guard.preset={preset}"])
    return {**follow(scenario, home, quiet=quiet, warn=False), "act": act.name, "preset": preset}


def _show(act: Act, played: Mapping[str, Mapping[str, Any]], home: Path | None) -> None:
    """Both runs as a picture of one line each, and what the guard says."""
    out.print(f"  [dim]{'':<18}{act.words}[/]")
    for preset, report in played.items():
        values = RunRecord.open(report["run"], home).series.metrics.get(act.metric, np.zeros(0))
        colour = "green" if preset == "auto" else "red"
        end = percent(values[-1]) if len(values) else "-"
        besides = "" if act.metric == "accuracy" else f"   accuracy {percent(report['accuracy'])}"
        drawn = f"[{colour}]{sparkline(values)}  {end:>7}[/]"
        out.print(f"  {GUARDS[preset]:<18}{drawn}{besides}   [dim]run {report['run']}[/]")
    guarded = played["auto"]
    out.print("\n  The guard was not told how many attack.", *map(safe, guarded["verdict"]))
    out.print(f"  Honest clients among them: {len(guarded['honest_in_doubt']) or 'none'}.\n")


def _next(runs: Sequence[int], home: Path | None, open_: bool) -> None:
    plain, guarded = runs[:2]
    hint(
        f"fedwarden show {guarded}  # each client in doubt, and why",
        "fedwarden dashboard --open  # all runs in a browser",
        f"fedwarden report {guarded}  # one run with figures, as one file to pass on",
        folder=home,
    )
    out.print("  fedwarden demo --toml > mine.toml; fedwarden run mine.toml", soft_wrap=True)
    out.print(
        "\nTo guard a Flower app of your own:\n"
        "  from fedwarden.flower import Guarded\n"
        "  strategy = Guarded(FedAvg())  # around the strategy that you have",
        soft_wrap=True,
    )
    page, ask = f"/compare?first={plain}&second={guarded}", has("dashboard") and lively()
    if open_ or (ask and typer.confirm("\nLook at the first two runs in a browser now?", default=False)):
        import_module(f"{__package__}.dashboard").dashboard(home, port=0, open_=True, page=page)
