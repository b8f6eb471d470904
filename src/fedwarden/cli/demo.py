"""``fedwarden demo``: the guard beside plain averaging, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.words import percent
from ..sim.scenario import load_scenario
from .common import AsJson, Home, emit, hint, out, table
from .run import follow

SCENARIO = Path(__file__).parents[1] / "sim" / "demo.toml"
GUARDS = {"none": "FedAvg, no guard", "auto": "FedAvg behind the guard"}

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def demo(
    home: Home = None,
    as_json: AsJson = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print the scenario, to save and change, and stop.")] = False,
) -> None:
    """Twenty clients learn to read digits; three of them train on wrong labels.

    The same federation runs twice from the same seed, with plain averaging (preset `none`) and behind the guard
    (preset `auto`), which is not told how many attackers there are. Both runs are recorded in the workspace.
    """
    if toml:
        print(SCENARIO.read_text(encoding="utf-8"), end="")
        return None
    reports = {preset: _play(preset, home) for preset in GUARDS}
    if as_json:
        return emit({"runs": list(reports.values())})
    return _show(reports, home)


def _play(preset: str, home: Path | None) -> dict[str, Any]:
    scenario = load_scenario(SCENARIO, [f"name=demo-{preset}", f"guard.preset={preset}"])
    return {**follow(scenario, home), "preset": preset}


def _show(reports: dict[str, dict[str, Any]], home: Path | None) -> None:
    last = reports["auto"]
    attackers = len(last["attackers"])
    shown = table(
        f"20 clients of digits,\n{attackers} of them flip labels",
        "\nrun",
        "clean\naccuracy",
        f"rounds to\n{percent(last['target'])}",
        f"attackers\ncaught of {attackers}",
        "honest\nexcluded",
        "\nseconds",
    )
    for preset, report in reports.items():
        reached = report["rounds_to_target"]
        shown.add_row(
            f"{GUARDS[preset]}",
            str(report["run"]),
            percent(report["accuracy"]),
            "not reached" if reached is None else str(reached),
            str(len(report["caught"])),
            str(len(report["wronged"])),
            f"{report['seconds']:.1f}",
        )
    out.print(shown)
    hint(
        f"fedwarden show {last['run']}  # each client's score, and why it was excluded",
        "fedwarden dashboard  # both runs in a browser",
        f"fedwarden report {last['run']}  # the same with figures, as one file to pass on",
        f"fedwarden replay {last['run']} --rule gesd  # what another rule would have decided",
        folder=home,
    )
    out.print("  fedwarden demo --toml > mine.toml; fedwarden run mine.toml", soft_wrap=True)
    if Path("examples/digits.toml").is_file():
        out.print("  fedwarden run examples/digits.toml", soft_wrap=True)
