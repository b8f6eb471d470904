"""Search for PID coefficients and a threshold: train once per seed, then only replay the recorded distances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from ..core.config import Component
from ..core.errors import ConfigError, MissingExtra
from ..core.registry import describe
from ..core.types import RoundRecord
from ..guard.config import GuardConfig, alter
from ..guard.judge import Watch
from ..guard.replay import replay
from ..guard.warden import Warden
from .federation import Federation
from .metrics import Truth, detection
from .scenario import Scenario

SPACE: dict[str, tuple[float, float, bool]] = {  # lowest, highest, on a logarithmic scale
    "history.kp": (0.01, 2.0, False),
    "history.ki": (0.0, 2.0, False),
    "history.kd": (0.0, 2.0, False),
    "rule.k": (0.5, 4.0, False),
    "rule.alpha": (1e-4, 0.4, True),
    "rule.limit": (1.0, 20.0, True),
}
TIE = 1e-6  # less than any step of F1: decides between settings that exclude the same clients


class Observed(NamedTuple):
    """One seed's run in which nobody was excluded, and the truth about it."""

    records: list[RoundRecord]
    truth: Truth


@dataclass(frozen=True)
class Grade:
    """How a setting did over all seeds.

    ``let_in`` counts the client-rounds of attackers in the model, ``left_out`` those of honest clients that are not.
    """

    f1: float
    caught: int
    attackers: int
    wronged: int
    let_in: int
    attacks: int
    left_out: int = 0
    honest: int = 0

    @property
    def value(self) -> float:
        """What the search maximises: F1, then fewer client-rounds of attackers let in."""
        return self.f1 - TIE * self.let_in / max(self.attacks, 1)


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search."""

    warden: Warden
    defaults: dict[str, float]
    best: dict[str, float]
    before: Grade
    after: Grade


def observe(scenario: Scenario, seed: int, on_round: Callable[[RoundRecord], None] | None = None) -> Observed:
    """Train with the scenario's attackers and watch, exclude nobody: the signals then owe nothing to a threshold."""
    policy = Component(name="observe")
    guard = scenario.guard.model_copy(update={"policy": policy})
    seeded = scenario.model_copy(update={"seed": seed, "guard": guard})
    records, federation = [], Federation(seeded)
    for record in federation.play():
        records.append(record)
        if on_round:
            on_round(record)
    return Observed(records, federation.truth)


def grade(runs: Sequence[Observed], warden: Warden) -> Grade:
    """Replay every seed; F1 is the mean over seeds."""
    f1s, caught, attackers, wronged, let_in, attacks, left_out, honest = [], 0, 0, 0, 0, 0, 0, 0
    for run in runs:
        rounds = replay(run.records, warden)
        found, truth = detection(rounds, run.truth), run.truth
        pairs = [(r.round, c, w) for r in rounds for c, w in zip(r.client_ids, r.weights, strict=True)]
        weights = [w for t, c, w in pairs if t in truth.get(c, ())]
        f1s.append(found.f1)
        caught += len(found.caught)
        attackers += len(found.attackers)
        wronged += len(found.wronged)
        let_in += int(sum(w > 0 for w in weights))
        attacks += len(weights)
        good = [c for c in rounds[0].client_ids if c not in truth]
        inside = int(sum(w > 0 for _, c, w in pairs if c not in truth))
        honest += len(good) * len(rounds)
        left_out += len(good) * len(rounds) - inside
    return Grade(sum(f1s) / len(f1s), caught, attackers, wronged, let_in, attacks, left_out, honest)


def tunable(warden: Warden) -> dict[str, float]:
    """The options to search over and their values now: the PID coefficients and the rule's own of each PID watch."""
    watches = [_options(watch) for watch in _pid_watches(warden).values()]
    return {name: next(w[name] for w in watches if name in w) for name in SPACE if any(name in w for w in watches)}


def with_values(warden: Warden, values: Mapping[str, float]) -> Warden:
    """The warden with these values in every PID watch that has the option."""
    settings = [
        f"watches.{i}.{name}={value}"
        for i, watch in _pid_watches(warden).items()
        for name, value in values.items()
        if name in _options(watch)
    ]
    return alter(warden, settings)


def to_tune(scenario: Scenario) -> Scenario:
    """The scenario with the guard to search over: its own where that has a PID watch, else the preset pid_made.

    Excludes for good, as PID-MADE does, whatever the policy given.
    """
    require_optuna()
    if not scenario.truth():
        last = f"round {scenario.rounds}, the last one"
        raise ConfigError(f"tune needs attackers to find; add an [[attacks]] table that starts by {last}")
    guard = scenario.guard if _pid_watches(scenario.guard.build()) else GuardConfig(preset="pid_made")
    return scenario.model_copy(update={"guard": guard.model_copy(update={"policy": Component(name="quarantine")})})


def tune(
    runs: Sequence[Observed], warden: Warden, trials: int, seed: int, on_trial: Callable[[], None] | None = None
) -> Tuned:
    """The best coefficients that a search for F1 finds."""
    defaults = tunable(warden)
    grades = search(runs, warden, defaults, trials, seed, lambda grade: grade.value, on_trial)
    before = grade(runs, warden)
    best, after = grades[0]
    if before.value >= after.value:
        best, after = defaults, before
    return Tuned(with_values(warden, best), defaults, best, before, after)


def search(
    runs: Sequence[Observed],
    warden: Warden,
    defaults: Mapping[str, float],
    trials: int,
    seed: int,
    aim: Callable[[Grade], float],
    on_trial: Callable[[], None] | None = None,
) -> list[tuple[dict[str, float], Grade]]:
    """Tree-structured Parzen estimator over some options: what was tried, best first; the defaults are tried first."""
    require_optuna()
    optuna: Any = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    grades: list[tuple[dict[str, float], Grade]] = []

    def objective(trial: Any) -> float:
        drawn = {name: trial.suggest_float(name, *SPACE[name][:2], log=SPACE[name][2]) for name in defaults}
        values = {name: float(f"{value:.3g}") for name, value in drawn.items()}  # what is printed is what was graded
        result = grade(runs, with_values(warden, values))
        grades.append((values, result))
        if on_trial:
            on_trial()
        return aim(result)

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({name: min(max(v, SPACE[name][0]), SPACE[name][1]) for name, v in defaults.items()})
    study.optimize(objective, n_trials=trials)
    return sorted(grades, key=lambda pair: -aim(pair[1]))


def require_optuna() -> None:
    if find_spec("optuna") is None:
        raise MissingExtra("tune needs optuna, which is not installed; install it with: pip install 'fedwarden[tune]'")


def _options(watch: Watch) -> dict[str, float]:
    """The options of its history and its rule that can be searched over, and their values."""
    found = {"history": describe(watch.history), "rule": describe(watch.rule)}
    options = {f"{part}.{option}": value for part, table in found.items() for option, value in table.items()}
    return {name: float(options[name]) for name in SPACE if name in options}


def _pid_watches(warden: Warden) -> dict[int, Watch]:
    return {i: w for i, w in enumerate(warden.watches) if "history.kp" in _options(w)}
