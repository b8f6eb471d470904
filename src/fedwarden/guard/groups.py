"""Where single updates are hidden: random groups, each summed securely, and what a group's verdict says of its members.

A guard that is given the means of groups can leave a group out of a round. It cannot say which of its members is bad.
The groups are drawn anew in every round, so a bad client takes its flags along from group to group, and an honest one
leaves them behind.

The guarantee. A client is excluded only where no coalition of a given number of others explains its flagged groups.
Suppose that no more than that many clients attack, and that a group without an attacker is flagged with a probability
of at most ``chance`` in every round, whatever was before. Then the probability that an honest client is ever excluded
is at most alpha, for all n clients and all rounds together, whatever the attackers do: they may know who is in their
group, act together, and attack in the company of one victim only.

Why. Take the coalition that the attackers really are. In rounds in which none of them is in the group of an honest
client, the ratio of two likelihoods of its flag has an expectation of at most 1. Their product is a non-negative
supermartingale, and by Ville's inequality it ever reaches n / alpha with a probability of at most alpha / n. The
capital of a client is the least product over all coalitions, so it is never above that one. Coalitions must contain
those who are excluded already: until the first honest client is, they are attackers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp

from ..core.seeds import numpy_rng
from ..core.types import NO_WORD, Cohort, Word
from ..updates.updates import Updates

Group = tuple[str, ...]
"""The clients whose updates are summed."""
Seen = tuple[frozenset[str], bool]
"""A round of one client: who was in its group besides, and whether the group was flagged."""
NODES = 1000  # of the search for a coalition


def random_groups(clients: Sequence[str], size: int, rng: np.random.Generator) -> tuple[Group, ...]:
    """A random partition of the clients into groups of ``size`` or, where they do not divide evenly, a few more.

    No group is smaller, since its size is what hides a client. Members and groups are in the order of the clients.

    >>> random_groups("abcdefg", 3, np.random.default_rng(0))
    (('a', 'b', 'f'), ('c', 'd', 'e', 'g'))
    """
    n = len(clients)
    if not 1 <= size <= n:
        raise ValueError(f"groups need 1 <= size <= n clients; got size={size}, n={n}")
    parts = np.array_split(rng.permutation(n), n // size)
    return tuple(tuple(clients[i] for i in part) for part in sorted(sorted(part.tolist()) for part in parts))


def group_name(group: Group) -> str:
    """The name under which a group is judged, which no other group has; that of its member where there is one alone.

    >>> print(group_name(("a", "b")), group_name(("a",)), group_name(("a+b", "c")))
    a+b a a\\+b+c
    """
    if len(group) == 1:
        return group[0]
    return "+".join(client.replace("\\", "\\\\").replace("+", "\\+") for client in group)


def group_means(cohort: Cohort, groups: Sequence[Group]) -> Cohort:
    """What a secure sum within each group lets a server know: its mean, weighted by examples, and their number.

        y_g = sum_{i in g} n_i x_i / n_g,   n_g = sum_{i in g} n_i

    Stands in for the protocol where nothing is hidden, as in a simulation. Here alone are single rows read.

    >>> cohort = Cohort(1, "abc", Updates.of(np.array([[0.0], [4.0], [9.0]])), [1.0, 3.0, 5.0])
    >>> means = group_means(cohort, [("a", "b"), ("c",)])
    >>> means.client_ids, means.num_examples.tolist(), means.updates.array.tolist()
    (('a+b', 'c'), [4.0, 5.0], [[3.0], [9.0]])
    """
    if not groups:
        return cohort.select([])
    place, rows, totals = {client: i for i, client in enumerate(cohort.client_ids)}, [], []
    for group in groups:
        counts = np.zeros(len(cohort))
        members = [place[client] for client in group]
        counts[members] = cohort.num_examples[members]
        totals.append(counts.sum())
        rows.append(cohort.updates.weighted_sum(counts / counts.sum()))
    updates = Updates.of(torch.stack(rows), None, cohort.updates.measured)
    names, layers = tuple(map(group_name, groups)), cohort.layers
    return Cohort(cohort.round, names, updates, totals, cohort.params, output=cohort.output, layers=layers)


def easy_coalition(seen: Sequence[Seen], colluders: int, known: Collection[str]) -> frozenset[str]:
    """A coalition that explains many flags, if not the most: again and again whoever was there in most of the rest.

    >>> rounds = [(frozenset("bc"), True), (frozenset("cd"), True), (frozenset("e"), True), (frozenset("b"), False)]
    >>> sorted(easy_coalition(rounds, 2, ()))
    ['c', 'e']
    """
    chosen = frozenset(known)
    while len(chosen) < colluders:
        left = Counter(name for others, flagged in seen if flagged and not others & chosen for name in others)
        if not left:
            break
        chosen |= {max(sorted(left), key=left.__getitem__)}
    return chosen


def least_capital(seen: Sequence[Seen], colluders: int, known: Collection[str], chance: float, likely: float) -> float:
    """The log of the least capital of a bet against a client, over all coalitions of others that may have framed it.

        log K = min over S of sum over rounds t without a member of S in the group: log r_t
        r_t = q / p where the group was flagged, (1 - q) / (1 - p) where it was not;   p = chance, q = likely

    S has at most ``colluders`` members and contains those ``known``, who are excluded already. A flagged round counts
    nothing where a member of S was there. This is a maximum coverage problem, solved as an integer program; where that
    takes too long, the bound that it has reached, which is lower.

    >>> rounds = [(frozenset("b"), True), (frozenset("c"), True), (frozenset("d"), False)]
    >>> round(least_capital(rounds, 0, (), 0.05, 0.5), 3)  # 2 log 10 + log(.5 / .95)
    3.963
    >>> round(least_capital(rounds, 1, (), 0.05, 0.5), 3)  # b or c alone explains one of the two flags
    1.661
    """
    gain, loss = math.log(likely / chance), math.log((1 - likely) / (1 - chance))
    fixed = frozenset(known)
    rounds = [(others - fixed, flagged) for others, flagged in seen if not others & fixed]
    names = sorted(set().union(*(others for others, _ in rounds)))
    budget, worth = max(0, colluders - len(fixed)), [gain if flagged else loss for _, flagged in rounds]
    if not rounds or not names or not budget:
        return math.fsum(worth)
    # x_j: whether j is in S; h_t: whether a member of S was there in round t
    n, place = len(names), {name: j for j, name in enumerate(names)}
    rows, low, high = [np.r_[np.ones(n), np.zeros(len(rounds))]], [0.0], [float(budget)]
    for t, (others, flagged) in enumerate(rounds):
        members = [place[name] for name in others]
        for some in [members] if flagged else [[j] for j in members]:
            row = np.zeros(n + len(rounds))
            row[some], row[n + t] = 1.0, -1.0
            rows.append(row)
            low, high = [*low, 0.0 if flagged else -np.inf], [*high, np.inf if flagged else 0.0]
    cost = np.r_[np.zeros(n), -np.array(worth)]
    limits = LinearConstraint(np.array(rows), np.array(low), np.array(high))
    whole = np.r_[np.ones(n), np.zeros(len(rounds))]
    found = milp(cost, integrality=whole, bounds=Bounds(0, 1), constraints=limits, options={"node_limit": NODES})
    return math.fsum(worth) + float(found.mip_dual_bound)


@dataclass(frozen=True)
class Evidence:
    """What is remembered of past rounds: every group with its flag, who is excluded, and who was ever in a group."""

    rounds: tuple[tuple[tuple[Group, bool], ...], ...] = ()
    excluded: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()

    def of(self, client: str) -> list[Seen]:
        """The rounds of one client."""
        found = (pair for round in self.rounds for pair in round if client in pair[0])
        return [(frozenset(group) - {client}, flagged) for group, flagged in found]

    def obeying(self, word: Word) -> Evidence:
        """The same with the exclusions that the word leaves, and without the flags of a readmitted client's groups."""
        back = self.excluded if word.observing else word.readmitted | word.trusted
        rounds = tuple(
            tuple((group, flag) for group, flag in round if not (flag and word.readmitted.intersection(group)))
            for round in self.rounds
        )
        return replace(self, rounds=rounds, excluded=tuple(c for c in self.excluded if c not in back))

    def state_dict(self) -> dict[str, Any]:
        """The same as plain lists."""
        rounds = [[[list(group), flagged] for group, flagged in round] for round in self.rounds]
        return {"rounds": rounds, "excluded": list(self.excluded), "known": sorted(self.known)}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Evidence:
        rounds = (tuple((tuple(group), bool(flagged)) for group, flagged in round) for round in state["rounds"])
        return cls(tuple(rounds), tuple(state["excluded"]), frozenset(state["known"]))


@dataclass(frozen=True)
class Groups:
    """How clients are grouped, and when one is excluded for what its groups did.

    ``seed`` draws the groups of each round; it should not be known to clients. ``colluders`` is the largest share of
    clients that may attack together, and ``chance`` how often a group without an attacker may be flagged: with these
    the chance that an honest client is ever excluded is at most ``alpha``. ``likely`` is how often the bet expects the
    groups of an attacker to be flagged; it costs power where it is wrong, never the level.
    """

    size: int = 3
    seed: int = 0
    alpha: float = 0.05
    colluders: float = 0.2
    chance: float = 0.05
    likely: float = 0.5

    def __post_init__(self) -> None:
        if not (self.size >= 1 and 0 < self.alpha < 1 and 0 <= self.colluders < 0.5):
            raise ValueError(f"needs size >= 1, 0 < alpha < 1 and 0 <= colluders < 0.5; got {self}")
        if not 0 < self.chance < self.likely < 1:
            raise ValueError(f"needs 0 < chance < likely < 1; got {self}")

    def form(self, clients: Sequence[str], round: int) -> tuple[Group, ...]:
        """The groups of a round; none where there are fewer clients than one group needs."""
        rng = numpy_rng(self.seed, "groups", round)
        return random_groups(clients, self.size, rng) if len(clients) >= self.size else ()

    def most(self, n: int) -> int:
        """How many of n clients may attack together: the share of them, and one at the least.

        >>> [Groups(colluders=0.2).most(n) for n in (4, 9, 10, 25)], Groups(colluders=0.0).most(4)
        ([1, 1, 2, 5], 0)
        """
        return max(1, int(self.colluders * n + 1e-9)) if self.colluders else 0

    def step(self, past: Evidence, flags: Mapping[Group, bool], word: Word = NO_WORD) -> Evidence:
        """What is known after one more round, whose groups were flagged or not.

        Where most groups were flagged, something else is wrong: those count for nothing, the others still clear. A
        client that the operator trusts is not excluded, and nobody is while the operator observes.
        """
        many = 2 * sum(flags.values()) > len(flags)
        held = tuple((group, bool(flag)) for group, flag in flags.items() if not (flag and many))
        now = replace(past, rounds=(*past.rounds, held), known=past.known.union(*flags))
        enough, most = math.log(max(1, len(now.known)) / self.alpha), self.most(len(now.known))
        suspects = {c for group, flag in held if flag for c in group} - word.trusted if not word.observing else set()
        for client in sorted(suspects - set(past.excluded)):
            seen = now.of(client)
            easy = easy_coalition(seen, most, past.excluded)
            bounds = ((len(easy), easy), (most, past.excluded))  # the first is quick, and no lower than the second
            if all(least_capital(seen, b, known, self.chance, self.likely) >= enough for b, known in bounds):
                now = replace(now, excluded=(*now.excluded, client))
        return now
