"""The cases of the adversary's suite: attacks of every kind and schedule, for any number of clients and rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..attacks.optimised import alie_z
from ..core.errors import ConfigError, nearest
from ..core.words import count
from .runner import Table

NO_ATTACK = "no attack"
PERIODS = ((1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (5, 5), (1, 5))  # rounds on, rounds off
SHARE = 0.3
INFLATED = 1e6


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True)
class Case:
    """One attack of the suite: its tables, or why this configuration cannot run it; ``aims`` at a wrong label."""

    name: str
    attacks: tuple[Table, ...] = ()
    skipped: str = ""
    aims: bool = False

    @property
    def attackers(self) -> tuple[int, ...]:
        return tuple(sorted({client for attack in self.attacks for client in attack["clients"]}))


def share_of(n: int) -> int:
    """The attackers that are 30 % of n clients: at least 1, and fewer than half; 0 where that cannot be.

    >>> [share_of(n) for n in (2, 3, 5, 20)]
    [0, 1, 2, 6]
    """
    return min(max(1, round(SHARE * n)), (n - 1) // 2)


def suite(n: int, rounds: int) -> tuple[Case, ...]:
    """All cases for n clients; the first ones attack.

    >>> [case.name for case in suite(20, 20)][:3]
    ['no attack', 'sign flip x3, 1 attacker', 'sign flip x3, 1 attacker, inflated counts']
    """
    if n < 3:
        reason = f"needs 3 clients, so that attackers are fewer than half; there are {n}"
        return tuple(c if c.name == NO_ATTACK else Case(c.name, skipped=reason) for c in suite(20, rounds))
    return (Case(NO_ATTACK), *_flips(n, rounds), *_single(), *_joint(n), *_strongest(n, rounds), *_in_turns(n, rounds))


def _flips(n: int, rounds: int) -> Iterator[Case]:
    """Sign flips on every schedule, by one client and by 30 %, with true and with inflated counts."""
    late = rounds // 3 + 1
    schedules: dict[str, Mapping[str, int]] = {
        "sign flip x3": {},
        **{f"on-off {on}-{off}": {"on": on, "off": off} for on, off in PERIODS},
        "slow drift": {"ramp": round(2 * rounds / 3)},
        "honest at first, then on-off 2-2": {"start": late, "on": 2, "off": 2},
    }
    for name, schedule in schedules.items():
        steady = "ramp" not in schedule and "start" not in schedule
        for who, f, joint in (("1 attacker", 1, False), ("30 %", share_of(n), True)):
            for claims in (1.0, INFLATED) if steady else (1.0,):
                full = f"{name}, {who}{', inflated counts' if claims > 1 else ''}"
                table = {"name": "sign_flip", "scale": 3.0, "clients": list(range(f)), **schedule}
                if claims > 1:
                    table["claims"] = claims
                yield Case(full, (table,), _unlike(n, rounds, joint, schedule))


def _unlike(n: int, rounds: int, joint: bool, schedule: Mapping[str, int]) -> str:
    """Why a case would be the same as another one, or nothing."""
    if joint and share_of(n) == 1:
        return f"30 % of {n} clients are 1 attacker"
    begun = rounds - schedule.get("start", 1) + 1
    if begun <= schedule.get("on", 0):
        return f"does not pause in {count(rounds, 'round')}"
    return ""


def _single() -> Iterator[Case]:
    """One attacker of each kind."""
    kinds: dict[str, Table] = {
        "scaling x100": {"name": "scaling", "factor": 100.0},
        "Gaussian noise": {"name": "gaussian"},
        "free rider, nothing": {"name": "free_rider", "mode": "zero"},
        "free rider, last change": {"name": "free_rider", "mode": "previous"},
        "label flip, 1 attacker": {"name": "label_flip"},
        "backdoor, 1 attacker": {"name": "backdoor"},
        "adaptive, 1 attacker": {"name": "adaptive"},
        "copycat": {"name": "copy"},
        "copycat x3": {"name": "copy", "scale": 3.0},
    }
    for name, table in kinds.items():
        yield Case(name, ({**table, "clients": [0]},), aims=table["name"] == "backdoor")


def _joint(n: int) -> Iterator[Case]:
    """Attacks by 30 % of the clients; most of these need several."""
    f = share_of(n)
    for name, attack in {
        "ALIE, 30 %": "alie", "IPM, 30 %": "ipm", "Min-Max, 30 %": "min_max", "Sybil copies, 30 %": "sybil",
        "label flip, 30 %": "label_flip", "backdoor, 30 %": "backdoor", "adaptive, 30 %": "adaptive",
    }.items():  # fmt: skip
        reason = f"needs 2 attackers; 30 % of {n} clients are {f}" if f < 2 else ""
        if attack == "alie" and not reason and alie_z(n, f) <= 0:
            reason = f"{f} of {n} clients are too few to hide among the others: they would send the mean"
        yield Case(name, ({"name": attack, "clients": list(range(f))},), reason, attack == "backdoor")


def _strongest(n: int, rounds: int) -> Iterator[Case]:
    """The attacker that knows the whole configuration, alone and as 30 %, these also in turns and drifting slowly."""
    schedules: dict[str, Mapping[str, int]] = {
        "strongest": {}, "strongest, on-off 2-2": {"on": 2, "off": 2},
        "strongest, slow drift": {"ramp": round(2 * rounds / 3)},
    }  # fmt: skip
    yield Case("strongest, 1 attacker", ({"name": "strongest", "clients": [0]},))
    for name, schedule in schedules.items():
        table = {"name": "strongest", "clients": list(range(share_of(n))), **schedule}
        yield Case(f"{name}, 30 %", (table,), _unlike(n, rounds, True, schedule))


def _in_turns(n: int, rounds: int) -> Iterator[Case]:
    """Three attackers, each for two rounds while the others behave."""
    turns = [{"start": 1 + 2 * i, "on": 2, "off": 4, "clients": [i]} for i in range(3)]
    reason = f"needs 7 clients, so that 3 are fewer than half; there are {n}" if n < 7 else ""
    reason = reason or (f"needs 6 rounds; there are {rounds}" if rounds < 6 else "")
    yield Case("in turns", tuple({"name": "sign_flip", "scale": 3.0, **turn} for turn in turns), reason)


def choose(cases: Sequence[N], asked: Sequence[str]) -> list[N]:
    """The cases of these names, or with these words in their names, all by default; a run without attack always."""
    wanted = {NO_ATTACK}
    for word in asked:
        exact = {c.name for c in cases if c.name.lower() == word.lower()}
        found = exact or {c.name for c in cases if word.lower() in c.name.lower()}
        if not found:
            known = {name for c in cases for name in (c.name, c.name.partition(",")[0])}
            raise ConfigError(f"there is no case {word!r}; {nearest(word, known)}")
        wanted |= found
    return [c for c in cases if c.name in wanted or not asked]
