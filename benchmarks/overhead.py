"""What a preset adds to a whole simulated round: the PID-MADE scenario on FEMNIST, 20 clients, two of them attackers.

    FEDWARDEN_DATA=... python benchmarks/overhead.py            about three minutes

Prints Markdown. Federations with each preset play their rounds in turn; a ratio is that of neighbouring rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from common import at_most, machine, say, seconds, show, spread

from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

BAR = 1.10
SCENARIO = Path(__file__).resolve().parents[1] / "examples" / "femnist-2-of-20.toml"
CASES = {
    "pid_made": {"guard.preset": "pid_made"},
    "auto": {"guard.preset": "auto"},
    "auto, with a probe": {"guard.preset": "auto", "data.reserve": "128"},
    "watch, with a probe": {"guard.preset": "watch", "data.reserve": "128"},
}


def federation(settings: dict[str, str]) -> Federation:
    """The scenario with nobody excluded, so that every round trains the same clients."""
    watching = {**settings, "guard.policy": "observe", "rounds": "1000"}
    return Federation(load_scenario(SCENARIO, [f"{key}={value}" for key, value in watching.items()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{machine()}\n")
    played = {
        name: federation(settings).play() for name, settings in {"none": {"guard.preset": "none"}, **CASES}.items()
    }
    for name, rounds in played.items():
        say(f"first round: {name}")
        next(rounds)  # starts the workers and compiles the kernels
    times: dict[str, list[float]] = {name: [] for name in played}
    for _ in range(options.rounds):
        for name, rounds in played.items():
            times[name].append(seconds(lambda rounds=rounds: next(rounds)))
    rows = []
    for name in CASES:
        ratios = [a / b for a, b in zip(times[name], times["none"], strict=True)]
        bar = at_most(median(ratios), BAR) if name.startswith("auto") else "-"
        rows.append(
            [name, f"{1000 * median(times['none']):.0f}", f"{1000 * median(times[name]):.0f}", spread(ratios), bar]
        )
    show(
        "A round of the PID-MADE scenario",
        ("preset", "none, ms", "with it, ms", "ratio (range)", "bar"),
        rows,
        f"{options.rounds} rounds of each in turn, training, guard and evaluation; nobody is excluded.",
    )


if __name__ == "__main__":
    main()
