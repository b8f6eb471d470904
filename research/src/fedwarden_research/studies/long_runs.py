"""How often the guard excludes an honest client for good where nobody attacks, by the number of rounds.

Every run with ``auto`` has a second one of the same seed without a guard, plain FedAvg, to compare the accuracy with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np

from fedwarden.core.config import override
from fedwarden.core.errors import ConfigError
from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.studies.attack_cases import choose
from fedwarden.studies.runner import LATE, Cell, Table, played

from .defences import SETTINGS, check_data
from .plan import Asked, Plan, division, scenario
from .tables import columns, confidence, markdown, mean_interval, select, share

GUARD, PLAIN = "auto", "none"
CLIENTS = (5, 10, 20, 40)
ALPHAS = (None, 100.0, 0.5, 0.1)
HORIZONS = (30, 200, 500)
ROUNDS, SEEDS = 200, 20
DECIDED = columns(
    "seed | rounds | attacks | data.dataset | data.clients | data.partition | train.participation | guard.preset"
)

Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """Honest clients: how many, by which Dirichlet parameter they were dealt their data, what share is asked a round.

    Without a parameter the data are IID.

    >>> [case.name for case in (Case(5), Case(20, 0.5), Case(40, participation=0.3))]
    ['IID, 5 clients', 'Dirichlet 0.5, 20 clients', 'IID, 12 of 40 clients']
    """

    clients: int
    alpha: float | None = None
    participation: float = 1.0

    @property
    def split(self) -> str:
        return "IID" if self.alpha is None else f"Dirichlet {self.alpha:g}"

    @property
    def asked(self) -> str:
        """How many clients are asked in a round, as long as nobody is excluded."""
        asked = round(self.participation * self.clients)
        return str(asked) if asked == self.clients else f"{asked} of {self.clients}"

    @property
    def name(self) -> str:
        return f"{self.split}, {self.asked} clients"

    @property
    def cell(self) -> Cell:
        return {"clients": self.clients, "alpha": self.alpha, "participation": self.participation}


PARTLY = (Case(40, participation=0.3), Case(100, participation=0.1), Case(40, 0.5, participation=0.3))


def plan(asked: Asked) -> Plan:
    """Every case with the guard and without."""
    data, seeds, rounds = asked.data or "digits", asked.seeds or SEEDS, asked.rounds or ROUNDS
    check_data(data)
    known = choose(cases(data), asked.case)
    wanted = cells(range(seeds), known, data, rounds, asked.settings)
    command = asked.command("long-runs", data=data, seeds=seeds, rounds=rounds)
    return Plan(
        study_name(data, rounds, asked.settings),
        wanted,
        "long-runs.md" if data == "digits" else f"long-runs-{data}.md",
        lambda found: "\n\n".join([headline(found, rounds), *(of(found, known, rounds) for of in (exclusions, costs))]),
        lambda found: page(found, known, data, rounds, command),
        run=measure,
        counts=lambda found: {"by_round": counts(found, rounds)},
        tried=[table for _, table in wanted[:2]],
    )


def counts(results: Results, rounds: int) -> dict[str, Any]:
    """By horizon and data partition: the runs in which an honest client was excluded for good, and all runs."""
    return {
        str(h): {split: {"excluded": k, "runs": n} for split, (k, n) in by_split(results, h).items()}
        for h in horizons(rounds)
    }


def cases(data: str = "digits") -> list[Case]:
    """All cases on a data set; digits has too few samples to divide them among 40 clients by Dirichlet(0.1)."""
    found = []
    for alpha in ALPHAS:
        numbers = [n for n in CLIENTS if (data, n, alpha) != ("digits", 40, 0.1)]
        found += [*(Case(n, alpha) for n in numbers), *(case for case in PARTLY if case.alpha == alpha)]
    return found


def cells(
    seeds: Sequence[int], known: Sequence[Case], data: str, rounds: int, settings: Sequence[str] = ()
) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed.

    ``settings``, as in ``train.lr=0.05``, change every scenario; those of the guard leave plain FedAvg as it is.
    """
    refuse(settings)
    shared = [s for s in settings if _path(s).partition(".")[0] != "guard"]
    found: list[tuple[Cell, Table]] = []
    for seed, case, preset in product(seeds, known, (GUARD, PLAIN)):
        own = {"clients": case.clients, "partition": division(case.alpha)}
        table = scenario(SETTINGS[data], seed, rounds, {"preset": preset}, own, participation=case.participation)
        cell = {**case.cell, "preset": preset, "seed": seed}
        found.append((cell, override(table, settings if preset == GUARD else shared)))
    return found


def refuse(settings: Sequence[str]) -> None:
    """Raise where a setting is one that tells the cases apart."""
    for path in map(_path, settings):
        for key in DECIDED:
            if f"{path}.".startswith(f"{key}.") or f"{key}.".startswith(f"{path}."):
                raise ConfigError(
                    f"--set cannot change {path}: the study decides {key}; use --seeds, --rounds, --data or --case"
                )


def study_name(data: str, rounds: int, settings: Sequence[str] = ()) -> str:
    """A name for every data set, number of rounds and choice of settings: no other study uses its results.

    >>> study_name("digits", 200)
    'long-runs-digits-200'
    """
    name = f"long-runs-{data}-{rounds}"
    return f"{name}-{sha256(chr(10).join(settings).encode()).hexdigest()[:8]}" if settings else name


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario in a workspace of its own and return what is kept of it."""
    return tally(played(table).records)


def tally(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """What is kept of a run in which everybody is honest.

    ``excluded_in`` has the round after which a client was excluded for good, ``suspended_in`` that of its first
    suspension; ``still_suspended`` counts the clients suspended after the last round. ``replied`` and ``left_out``
    count, round by round, the clients that replied and were not excluded for good then, and those of them whose reply
    had no weight.
    """
    excluded_in: dict[str, int] = {}
    suspended_in: dict[str, int] = {}
    replied, left_out = [], []
    for record in records:
        gone = set(record.excluded) - set(record.suspended)
        for found, clients in ((excluded_in, gone), (suspended_in, record.suspended)):
            for client in sorted(clients):
                found.setdefault(client, record.round)
        standing = np.array([client not in gone for client in record.client_ids], dtype=bool)
        replied.append(int(standing.sum()))
        left_out.append(int((standing & (record.weights == 0)).sum()))
    late = [record.metrics["accuracy"] for record in records[-LATE:]]
    return {
        "excluded_in": excluded_in,
        "suspended_in": suspended_in,
        "still_suspended": len(records[-1].suspended) if records else 0,
        "replied": replied,
        "left_out": left_out,
        "late_accuracy": float(np.mean(late)),
    }


def horizons(rounds: int) -> tuple[int, ...]:
    """The rounds by which exclusions are counted: the usual ones, and the last.

    >>> horizons(8), horizons(200), horizons(500)
    ((8,), (30, 200), (30, 200, 500))
    """
    return (*(h for h in HORIZONS if h < rounds), rounds)


def spans(rounds: int) -> list[tuple[int, int]]:
    """The first and the last round between two horizons.

    >>> spans(500)
    [(1, 30), (31, 200), (201, 500)]
    """
    ends = horizons(rounds)
    return [(before + 1, end) for before, end in zip((0, *ends), ends, strict=False)]


def excluded_by(found: Results, horizon: int) -> int:
    """In how many runs a client was excluded for good by a round."""
    return sum(any(t <= horizon for t in r["excluded_in"].values()) for r in found)


def suspended_by(found: Results, horizon: int) -> int:
    """In how many runs a client was suspended, for however long, by a round."""
    return sum(any(t <= horizon for t in r["suspended_in"].values()) for r in found)


def left_out(found: Results, first: int, last: int) -> float:
    """The share of the client-rounds from one round to another in which a client was left out and not excluded.

    NaN where no client replied.
    """
    asked, out = (sum(sum(r[key][first - 1 : last]) for r in found) for key in ("replied", "left_out"))
    return out / asked if asked else float("nan")


def differences(results: Results, case: Case) -> list[float]:
    """By seed, how many points the guard's accuracy lies above that of plain FedAvg."""
    found = []
    for seed in sorted({r["cell"]["seed"] for r in results}):
        guarded, plain = (select(results, {**case.cell, "preset": p, "seed": seed}) for p in (GUARD, PLAIN))
        found += [100 * (a["late_accuracy"] - b["late_accuracy"]) for a, b in zip(guarded, plain, strict=False)]
    return found


def by_split(results: Results, horizon: int) -> dict[str, tuple[int, int]]:
    """In how many runs with the guard a client was excluded by a round, and of how many, by data partition."""
    found = {Case(0, a).split: select(results, {"preset": GUARD, "alpha": a}) for a in ALPHAS}
    return {split: (excluded_by(runs, horizon), len(runs)) for split, runs in found.items() if runs}


def headline(results: Results, rounds: int) -> str:
    """In how many of all runs an honest client was excluded, by data partition."""
    found = by_split(results, rounds)
    if not found:
        return f"`{GUARD}` was not run."
    hits, runs = (sum(pair[i] for pair in found.values()) for i in (0, 1))
    parts = ", ".join(f"{k} of {n} with {split} data" for split, (k, n) in found.items())
    earlier = {h: sum(k for k, _ in by_split(results, h).values()) for h in horizons(rounds)[:-1]}
    before = "".join(f" By round {h} it was {k} of {runs}." for h, k in earlier.items())
    guarded = select(results, {"preset": GUARD})
    before += (
        f" It had suspended one for a while in {suspended_by(guarded, rounds)} of {runs}, and after the last round one "
        f"was still suspended in {sum(r['still_suspended'] > 0 for r in guarded)}."
    )
    return (
        f"Without attackers `{GUARD}` had excluded an honest client for good by round {rounds} in {hits} of "
        f"{count(runs, 'run')} ({100 * hits / runs:.1f} %): {parts}.{before}"
    )


def exclusions(results: Results, known: Sequence[Case], rounds: int) -> str:
    """Per case: the runs in which an honest client was excluded for good by each horizon, with 95 % intervals."""
    header = (
        "partition", "clients in a round", "runs", *(f"excluded by round {h}" for h in horizons(rounds)),
        "runs with a suspension", f"suspended after round {rounds}",
    )  # fmt: skip
    rows = []
    for case in known:
        if found := _runs(results, case):
            rates = [share(excluded_by(found, h), len(found)) for h in horizons(rounds)]
            still = sum(r["still_suspended"] > 0 for r in found)
            rows.append([case.split, case.asked, len(found), *rates, suspended_by(found, rounds), still])
    return markdown(header, rows)


def costs(results: Results, known: Sequence[Case], rounds: int) -> str:
    """Per case: the share of client-rounds left out without exclusion, and accuracy beside that of plain FedAvg."""
    header = (
        "partition", "clients in a round", *(f"left out, rounds {a}-{b}" for a, b in spans(rounds)),
        f"accuracy at round {rounds}", "FedAvg", "difference in points",
    )  # fmt: skip
    rows = []
    for case in known:
        if found := _runs(results, case):
            out = [_percent(left_out(found, a, b)) for a, b in spans(rounds)]
            accuracies = [
                confidence([r["late_accuracy"] for r in select(results, {**case.cell, "preset": preset})])
                for preset in (GUARD, PLAIN)
            ]
            rows.append([case.split, case.asked, *out, *accuracies, _points(differences(results, case))])
    return markdown(header, rows)


def page(results: Results, known: Sequence[Case], data: str, rounds: int, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    return f"""# Honest clients over long runs: {data}

{headline(results, rounds)}

<!-- not run: hours -->
```bash
{command}
```

- Data, model and training are those of `fedwarden bench defences --data {data}`, for {count(rounds, "round")}.
  The clients hold all training samples, and the server none.
- *Excluded by round t* counts the runs in which at least one client was excluded for good in rounds 1 to t, in percent
  with the 95 % interval over runs (Clopper and Pearson).
- *Suspended* is a client that is out of the model, still asked, and let in again once it is clean.
- *Left out* is the share of replies that were not in the model of their round, suspended clients included, of clients
  that were not excluded for good then.
- *Accuracy* is on test data, averaged over the last {LATE} rounds, in percent with the 95 % interval over seeds.
  *FedAvg* is the preset `{PLAIN}` on the same seeds; the difference is taken seed by seed.

## Excluded for good, by round

{exclusions(results, known, rounds)}

## Left out of a round, and accuracy

{costs(results, known, rounds)}"""


def _runs(results: Results, case: Case) -> Results:
    return select(results, {**case.cell, "preset": GUARD})


def _path(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.2f} %"


def _points(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, half = mean_interval(values)
    text = f"{round(mean, 2) + 0.0:+.2f}"
    return f"{text} ± {half:.2f}" if len(values) > 1 else text
