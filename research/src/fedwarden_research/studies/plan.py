"""What a bench is asked for, and what it then runs and tells: one value, whichever bench it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwarden.core.errors import ConfigError, nearest
from fedwarden.studies.runner import Cell, Table

from .tables import Result, Results


@dataclass(frozen=True)
class Asked:
    """What the user of a bench said; None or nothing where its own default is meant."""

    data: str | None = None
    seeds: int | None = None
    rounds: int | None = None
    defence: Sequence[str] = ()
    attack: Sequence[str] = ()
    case: Sequence[str] = ()
    settings: Sequence[str] = ()
    device: str | None = None
    clients: Sequence[int] = ()
    file: Path | None = None
    folder: Path | None = None

    def command(self, what: str, **numbers: object) -> str:
        """The command that asks for the same, with these options and all that was chosen.

        >>> Asked(case=["IID, 5 clients"]).command("long-runs", seeds=3)
        "fedwarden bench long-runs --seeds 3 --case 'IID, 5 clients'"
        """
        chosen = {
            "defence": self.defence, "attack": self.attack, "case": self.case, "clients": self.clients,
            "set": self.settings,
        }  # fmt: skip
        pairs = [(name, value) for name, value in numbers.items() if value is not None]
        pairs += [(name, value) for name, values in chosen.items() for value in values]
        words = [word for name, value in pairs for word in (f"--{name}", str(value))]
        return shlex.join(["fedwarden", "bench", what, *([str(self.file)] if self.file else []), *words])


def no_counts(results: Results) -> dict[str, Any]:
    return {}


def no_pictures(results: Results, folder: Path) -> list[Path]:
    return []


@dataclass(frozen=True)
class Plan:
    """All runs of a bench, under the name that keeps their results, and what is made of them.

    ``run`` makes a result of a cell's table, by default that of a scenario. ``told`` is for the terminal, ``page`` for
    the file of that name, ``counts`` for ``--json``. ``tried`` are scenarios in which what is wrong is said before
    anything is run.
    """

    name: str
    cells: Sequence[tuple[Cell, Table]]
    file: str
    told: Callable[[Results], str]
    page: Callable[[Results], str]
    run: Callable[[Table], Result] | None = None
    counts: Callable[[Results], Mapping[str, Any]] = no_counts
    pictures: Callable[[Results, Path], list[Path]] = no_pictures
    tried: Sequence[Table] = ()


def scenario(
    setting: Table, seed: int, rounds: int, guard: Table, data: Table, attacks: Sequence[Table] = (), **train: object
) -> dict[str, Any]:
    """The scenario of a run: a setting's data, model and training, with these on top of its data and training."""
    return {
        "seed": seed,
        "rounds": rounds,
        "checkpoint_every": rounds,
        "data": {**setting["data"], **data},
        "model": setting["model"],
        "train": {**setting["train"], "group": 10, "workers": 1, **train},
        "attacks": list(attacks),
        "guard": guard,
    }


def only_by(name: str, **options: object) -> dict[str, Any]:
    """A guard that excludes no client and aggregates by a rule."""
    return {"preset": "none", "aggregator": {"name": name, **options}}


def division(alpha: float | None) -> str | dict[str, Any]:
    """A partition by Dirichlet's distribution, or IID."""
    return "iid" if alpha is None else {"name": "dirichlet", "alpha": alpha}


def check(kind: str, asked: Sequence[str], known: Sequence[str]) -> None:
    """Refuse names that there are not."""
    for name in asked:
        if name not in known:
            raise ConfigError(f"there is no {kind} {name!r}; {nearest(name, known)}")
