"""What the others would see of a planned change, as plain values, and the sentences and tables that tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from ..core.words import count, listed, percent
from .power import Reach, Says, reach, some
from .verdict import Leakage, Sight

STILL, FRESH, CHANGE = "no change", "fresh swap", "the change"
HEAD = ("source", f"AUROC against {STILL}", f"AUROC against {FRESH}", "clients that see the change", "from round")


@dataclass(frozen=True)
class Source:
    """What one source shows to each observer: its verdict against each null, what it sees, and from which round on.

    ``from_round`` is the round from which on the observer tells the change from every null, None if it never does;
    ``moved`` are the classes whose answers moved, by how many past deviations.
    """

    source: str
    metric: str
    against: dict[str, dict[str, Leakage]]
    sees: dict[str, Sight]
    from_round: dict[str, int | None]
    moved: dict[str, float]

    @property
    def name(self) -> str:
        return f"{self.source}, {self.metric.replace('_', ' ')}"

    @property
    def first(self) -> int | None:
        """The round from which on it shows the change to somebody."""
        return min((t for t in self.from_round.values() if t is not None), default=None)

    def median(self, null: str) -> Leakage:
        """The verdict of the median observer."""
        return sorted((v[null] for v in self.against.values()), key=lambda v: v.auroc)[len(self.against) // 2]

    def says(self, null: str) -> list[Says]:
        """To each observer whether it shows that something is new, or the change itself."""
        return [sight.new if null == STILL else sight.shift for sight in self.sees.values()]


@dataclass(frozen=True)
class Measure:
    """What is left of a change where the client does something against being read, and the accuracy then.

    ``kind`` is "gradual", a change that comes in over ``value`` more rounds, or "smoothing", a moving average of
    updates of which ``value`` is kept.
    """

    kind: str
    value: float
    sees: dict[str, Says]
    strongest: Leakage
    accuracy: float

    def __str__(self) -> str:
        if self.kind == "gradual":
            return f"bring the change in gradually, over {self.value + 1:g} rounds"
        return f"send a moving average of your updates, {percent(self.value)} of the past kept"

    @property
    def price(self) -> str:
        """What it costs, in words."""
        late = "what you make counts in full only after that; " if self.kind == "gradual" else ""
        return f"{late}clean accuracy {percent(self.accuracy)}"

    @property
    def left(self) -> str:
        """What still shows, in words."""
        shows, unsure = (list(self.sees.values()).count(said) for said in ("shows", "cannot tell"))
        told = f"shows to {shows} of {count(len(self.sees), 'client')}"
        return f"{told}, and for {unsure} it is open" if unsure else told


@dataclass(frozen=True)
class Answer:
    """What would show of a planned change; ``exchanged`` is the share of samples that it replaces."""

    client: str
    change: dict[str, Any]
    start: int
    rounds: int
    ramp: int
    seeds: int
    alpha: float
    observers: tuple[str, ...]
    exchanged: float
    sources: tuple[Source, ...]
    accuracy: dict[str, float]
    measures: tuple[Measure, ...] = ()

    @property
    def reach(self) -> Reach:
        """What the tests could find with so many seeds and sources."""
        return reach(self.seeds, self.seeds, len(self.sources), self.alpha)

    def itself(self) -> dict[str, Says]:
        """Whether the change itself shows to each observer, in any source."""
        return {c: some(s.sees[c].shift for s in self.sources) for c in self.observers}

    def new(self) -> dict[str, Says]:
        """Whether it shows to each observer, in any source, that the data are new."""
        return {c: some(s.sees[c].new for s in self.sources) for c in self.observers}

    def first(self) -> int | None:
        """The round from which on the change itself shows to somebody."""
        return min((s.first for s in self.sources if s.first is not None), default=None)

    def surest(self, null: str) -> Source:
        """The source that tells the change from a null for most observers, and of those the one of highest AUROC."""
        return max(self.sources, key=lambda s: (s.says(null).count("shows"), s.median(null).auroc))

    def verdicts(self) -> dict[str, dict[str, Leakage]]:
        """Of each source its verdict against each null, as the median observer has it; the surest first."""
        ordered = sorted(self.sources, key=lambda s: -median(v[FRESH].auroc for v in s.against.values()))
        return {s.name: {null: s.median(null) for null in (STILL, FRESH)} for s in ordered}

    def rows(self) -> list[tuple[str, ...]]:
        """One row per source under ``HEAD``, the surest first, and one for all of them together."""
        by_name = {s.name: s for s in self.sources}
        found = []
        for name, verdicts in self.verdicts().items():
            told, first = by_name[name].says(FRESH), by_name[name].first
            found.append((name, *map(interval, verdicts.values()), _seen_by(told), str(first or "-")))
        every = _seen_by(list(self.itself().values()))
        return [*found, ("any source", "", "", every, str(self.first() or "-"))]

    def table(self) -> dict[str, Any]:
        """The answer as plain values, which :func:`answer_of` reads."""
        verdict = {"change": self.itself(), "new": self.new(), "tests": len(self.sources), **vars(self.reach)}
        return {**asdict(self), "verdict": verdict, "from_round": self.first()}


def answer_of(table: Mapping[str, Any]) -> Answer:
    """The answer that was made a table."""
    return TypeAdapter(Answer).validate_python(table)


def interval(verdict: Leakage) -> str:
    """The AUROC of a verdict, with its interval.

    >>> interval(Leakage(0.96, 0.88, 1.0, 0.01, 0.8, 1e-5))
    '.96 (.88 to 1.00)'
    """
    return "{} ({} to {})".format(*map(_short, (verdict.auroc, verdict.low, verdict.high)))


def _short(auroc: float) -> str:
    return f"{auroc:.2f}".removeprefix("0")


def planned(change: Mapping[str, Any], client: str) -> str:
    """A change of a client's data in its own terms.

    >>> planned({"name": "label_shift", "shares": {"gear": 0.6}}, "Delta")
    "client Delta's samples are 60.0 % class gear"
    >>> planned({"name": "feature_shift", "columns": {"temperature": -2.0}}, "Delta")
    'at client Delta temperature falls by 2 of its standard deviations'
    """
    options = {key: value for key, value in change.items() if key != "name"}
    if change["name"] == "label_shift":
        shares = [f"{percent(share)} class {c}" for c, share in options["shares"].items()]
        return f"client {client}'s samples are {listed(shares)}"
    if change["name"] == "class_drop":
        return f"client {client} has no more samples of class {options['class']}"
    if change["name"] == "class_new":
        amount = f", {percent(options['amount'])} of all" if options.get("amount") else ""
        return f"client {client} has samples of class {options['class']} for the first time{amount}"
    if change["name"] == "feature_shift":
        ways = [f"{c} {'rises' if by > 0 else 'falls'} by {abs(by):g}" for c, by in options["columns"].items()]
        return f"at client {client} {listed(ways)} of its standard deviations"
    told = ", ".join(f"{key} = {value}" for key, value in options.items())
    return f"{change['name']}{f' ({told})' if told else ''} changes client {client}'s data"


def words(found: Answer) -> list[str]:
    """The answer in sentences: what was asked, then what would show, to how many, from which round on, how surely."""
    many = len(found.observers)
    gradual = f", over {found.ramp + 1} rounds" if found.ramp else ""
    lines = [
        f"Planned: from round {found.start} on{gradual}, {planned(found.change, found.client)}. That changes "
        f"{percent(found.exchanged)} of its samples; {count(many, 'other client')} look{'s' * (many == 1)} on; "
        f"{found.seeds} seeds."
    ]
    change, new = list(found.itself().values()), list(found.new().values())
    if found.reach.auroc is None:
        lines.append(_powerless(found))
    elif "shows" in change:
        lines.append(
            f"The change itself would show to {change.count('shows')} of {count(many, 'client')}, from round "
            f"{found.first()} on; {_surest(found, FRESH)} against fresh samples of the same distribution."
        )
        lines += _classes(found)
    elif "cannot tell" not in change:
        lines.append(
            f"The change itself would not show to any of {count(many, 'client')}: no source tells it from fresh "
            f"samples, and {_found_from(found)}."
        )
    if "shows" in new:
        lines.append(
            f"That the data are new would show to {new.count('shows')} of {count(many, 'client')}; "
            f"{_surest(found, STILL)} against no change."
        )
    elif "cannot tell" not in new:
        lines.append("Nor would it show that the data are new.")
    lines += _limits(found, change)
    before, after = (percent(found.accuracy[name]) for name in (STILL, CHANGE))
    lines.append(f"Clean accuracy after {found.rounds} rounds: {before} without the change, {after} with it.")
    return [*lines, *(f"If you {m}, the change {m.left}; the price: {m.price}." for m in found.measures)]


def in_short(found: Answer) -> str:
    """The answer in a few words, for lists of runs."""
    told = list(found.itself().values())
    if found.reach.auroc is None:
        return "cannot tell with so few seeds"
    return f"the change would show to {told.count('shows')} of {count(len(told), 'client')}"


def _powerless(found: Answer) -> str:
    """Why these seeds cannot tell, and how many could."""
    able = found.reach
    return (
        f"Cannot tell what would show: even where its AUROC is 1, with {found.seeds} seeds a source reaches p = "
        f"{able.least_p:.2g} at best, and the level is {able.level:.2g} ({found.alpha:g} shared by "
        f"{count(len(found.sources), 'source')}). At least {able.needed} seeds could tell."
    )


def _limits(found: Answer, told: Sequence[Says]) -> list[str]:
    """What the answer leaves open: the clients for whom a test and its interval disagree, and those who see nothing."""
    unsure, blind = told.count("cannot tell"), told.count("does not show")
    lines = []
    if unsure and found.reach.auroc is not None:
        lines.append(
            f"For {unsure} of {len(told)} clients it is open whether the change itself shows: a test finds it, "
            f"but the interval of its AUROC includes one half. More seeds could tell."
        )
    if 0 < blind < len(told):
        lines.append(
            f"The change itself would not show to {blind} of {len(told)} clients: no source tells it, and "
            f"{_found_from(found)}."
        )
    return lines


def _found_from(found: Answer) -> str:
    able = found.reach
    assert able.auroc is not None  # else no client is told that the change does not show
    return (
        f"with {found.seeds} seeds one of AUROC {_short(able.auroc)} or more would have been found with probability "
        f"{able.power:g}"
    )


def _surest(found: Answer, null: str) -> str:
    best = found.surest(null)
    return (
        f"most surely in {best.name}, to {best.says(null).count('shows')} of them: AUROC {interval(best.median(null))}"
    )


def _classes(found: Answer) -> list[str]:
    """The classes that the answers name."""
    moved = max((s.moved for s in found.sources), key=len)
    ways = {"higher": [c for c in moved if moved[c] > 0], "lower": [c for c in moved if moved[c] < 0]}
    parts = [f"{way} for {listed(classes)}" for way, classes in ways.items() if classes]
    return [f"It shows which classes moved: outputs are {' and '.join(parts)}."] if parts else []


def _seen_by(told: Sequence[Says]) -> str:
    return "cannot tell" if set(told) == {"cannot tell"} else f"{told.count('shows')} of {len(told)}"
