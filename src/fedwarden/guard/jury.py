"""Named clients as judges: what their reports say of the clients that took turns in the round before.

A juror reports one number with its reply: the share of its own training examples whose loss rose since the last global
model that it received. Everybody receives one model. Which clients in doubt it was made of, the server's coins have
decided, so the reports of round t + 1 are the outcome of a randomised experiment on the coins of round t.

The guarantee. Let c be the coin of a client in doubt, p its chance and r any number that is known without c. As long as
the client does not raise what the jurors report, E[(c - p) r | past] <= 0: the server drew c, so no other client, no
juror that knows no coin, and no drift of the losses can change that. ``capital`` bets on more, see
:mod:`fedwarden.history.capital`, so that an honest client is excluded with probability at most alpha in a whole run.

What it does not say. A juror that works out the coins can report by them: jurors are believed, and the median of three
or more bounds what one of them can do. Harm on classes that no juror holds is not seen. Two clients that harm only
together are seen as far as each coin alone shows it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.seeds import numpy_rng
from ..core.stats import Scores, Weights

EXAMPLES = 512  # of its own that a juror measures: a share of 1/2 of them has a standard error of .02
RECENT = 50  # rounds that a number is compared with; 20 to 100 find as many attackers
FEWEST = 2  # jurors that can be sent two models; from three on, none can exclude by itself
SLIGHT = 0.05  # a gap that is no harm: label flippers have .2 to .4, the only owner of a class 0 to .1
LARGEST = 2.0  # deviations that one number counts as at most: no single round decides; 1.5 to 3 find as many


def worse(losses: Scores, before: Scores) -> float:
    """The share of a juror's examples whose loss rose; a loss that is no number is larger than any other.

    >>> worse(np.array([0.2, 0.5, 1.0, np.nan]), np.array([0.3, 0.4, 1.0, 9.0]))
    0.5
    """
    now, then = (np.where(np.isnan(some), np.inf, some) for some in (losses, before))
    return float(np.mean(now > then)) if len(now) else 0.0


def jurors_number(reports: Mapping[str, float], jurors: Collection[str]) -> float | None:
    """The median of what these jurors report; None where none does. What lies outside of [0, 1] is no report.

    One juror of three cannot move the median beyond what another one reports.

    >>> jurors_number({"a": 0.25, "b": 0.5, "c": 1e300, "d": 1.0}, {"a", "b", "c"})
    0.375
    """
    told = [reports[juror] for juror in sorted(jurors) if juror in reports]
    told = [number for number in told if 0 <= number <= 1]
    return float(np.median(np.array(told))) if told else None


def surprises(number: float, coins: Scores, past_numbers: Scores, past_coins: NDArray[np.float64]) -> Scores:
    """How much larger the jurors' number is, in deviations, than the past and the other clients' coins let expect.

        r_i = clip((y - m - sum_{j != i} b_j x_j) / s, -2, 2)

    x_j is coin less chance of client j, m the mean of the past numbers, b the ridge regression (penalty 1) of the past
    numbers on the past coins, and s the deviation of what it leaves. Nothing of it hangs on client i's own coin but y.
    No spread: 0.

    >>> before = np.array([0.0, 1.0, 0.0, 1.0])  # mean 1/2, deviation 1/2; nobody took turns
    >>> surprises(0.75, np.array([0.5, -0.5]), before, np.zeros((4, 2))).tolist()
    [0.5, 0.5]
    """
    off = past_numbers - past_numbers.mean()
    inverse = np.linalg.inv(past_coins @ past_coins.T + np.eye(len(off)))  # of as many rows as rounds
    effects = past_coins.T @ (inverse @ off)
    spread = (off - past_coins @ effects).std()
    if not spread > 0:
        return np.zeros(len(coins))
    others = coins @ effects - coins * effects
    return np.asarray(np.clip((number - past_numbers.mean() - others) / spread, -LARGEST, LARGEST))


def turns_of(client_ids: Sequence[str], chances: Scores, weights: Weights) -> dict[str, tuple[float, float]]:
    """Each client's coin, 1 where it was in the model, and its chance; of those about which a coin decided.

    >>> turns_of(("a", "b", "c"), np.array([1.0, 0.5, 0.5]), np.array([1.0, 0.0, 1.0]))
    {'b': (0.0, 0.5), 'c': (1.0, 0.5)}
    """
    drawn = np.flatnonzero((chances > 0) & (chances < 1))
    return {client_ids[i]: (float(weights[i] > 0), float(chances[i])) for i in drawn.tolist()}


@dataclass(frozen=True)
class Pair:
    """A client in doubt whose update is in one of two models, and the jurors that are sent the one and the other.

    ``inside`` says whether the next global model is the one with its update.
    """

    client: str
    inside: bool
    having: tuple[str, ...]
    lacking: tuple[str, ...]

    @classmethod
    def load(cls, table: Mapping[str, Any]) -> Pair:
        """The same from a checkpoint."""
        return cls(table["client"], table["inside"], tuple(table["having"]), tuple(table["lacking"]))

    @property
    def apart(self) -> tuple[str, ...]:
        """The jurors that are sent the model that does not become the next global one."""
        return self.lacking if self.inside else self.having


def drawn_pair(
    turns: Mapping[str, tuple[float, float]], jurors: Collection[str], secret: int, round: int
) -> Pair | None:
    """One of the clients that took turns, and a random half of the jurors that is sent a model with its update.

    Each split is as likely as the one with the halves exchanged. Jurors that take turns themselves are left out; None
    where fewer than two are left, or no client took turns.
    """
    clients, named = sorted(turns), sorted(set(jurors) - set(turns))
    if not clients or len(named) < FEWEST:
        return None
    rng = numpy_rng(secret, "pair", round)
    client = clients[rng.integers(len(clients))]
    order = [named[i] for i in rng.permutation(len(named)).tolist()]
    half = (len(order) + int(rng.integers(2))) // 2
    return Pair(client, turns[client][0] > 0, tuple(sorted(order[:half])), tuple(sorted(order[half:])))


def gap(reports: Mapping[str, float], pair: Pair, left_out: str = "") -> float:
    """The median report of the jurors that had the model with the client, less that of the others; 0 where one is none.

    >>> reports, pair = {"h": 0.75, "i": 0.5, "j": 0.25}, Pair("a", True, ("h", "i"), ("j",))
    >>> gap(reports, pair), gap(reports, pair, left_out="h"), gap(reports, pair, left_out="j")
    (0.375, 0.25, 0.0)
    """
    halves = ([reports[j] for j in half if j in reports and j != left_out] for half in (pair.having, pair.lacking))
    having, lacking = (np.array(half) for half in halves)
    return float(np.median(having) - np.median(lacking)) if len(having) and len(lacking) else 0.0


@dataclass(frozen=True)
class Hearings:
    """What a guard remembers for its jurors.

    ``turns`` are the coins and chances of the last round. ``past`` are the recent numbers of the jurors, each with the
    coins less chances of the clients that had taken turns. Where jurors are sent two models, they are the recent gaps
    between their reports; ``pair`` says which model each is sent, and ``held`` which each had last: 1/2 for the one
    with the tested client, -1/2 for the other.
    """

    turns: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    past: tuple[tuple[float, Mapping[str, float]], ...] = ()
    pair: Pair | None = None
    held: Mapping[str, float] = field(default_factory=dict)

    def without(self, clients: Collection[str]) -> Hearings:
        """The same where no coin decided about these clients, and none of them is tested."""
        turns = {c: turn for c, turn in self.turns.items() if c not in clients}
        return replace(self, turns=turns, pair=self.pair if self.pair and self.pair.client in turns else None)

    def compare(
        self, reports: Mapping[str, float], jurors: Collection[str]
    ) -> tuple[Hearings, Mapping[str, float], Mapping[str, Mapping[str, float]]]:
        """What to remember after reports on two models, what they say of the tested client, and by juror without it.

            z = 2 clip((g - 0.05) / s, -1, 1)

        g is the :func:`gap` and s the root mean square of the past ones. A juror compares with the model that it had
        last. Where that one was better or worse than the others', by h = +-1/2 of the mean past gap, this is made up
        for. As opposite splits are equally likely, the mean of z is not above 0 for a client that raises no juror's
        report by more than 0.05, whatever else moves the reports.
        """
        pair, past = self.pair, np.array([found for found, _ in self.past])
        left_out = sorted(jurors) if len(jurors) > FEWEST else []
        has = {} if pair is None else dict.fromkeys(pair.having, 0.5) | dict.fromkeys(pair.lacking, -0.5)
        after = Hearings({}, self.past, None, {**self.held, **{juror: has.get(juror, 0.0) for juror in reports}})
        mean, usual = (past.mean(), math.sqrt((past**2).mean())) if len(past) else (0.0, 0.0)
        settled = {j: told + mean * self.held.get(j, 0.0) for j, told in reports.items() if 0 <= told <= 1}

        def evidence(found: float) -> Mapping[str, float]:
            if pair is None or not found or not usual:
                return {}
            return {pair.client: LARGEST * float(np.clip((found - SLIGHT) / usual, -1, 1))}

        gaps = {name: 0.0 if pair is None else gap(settled, pair, name) for name in ("", *left_out)}
        after = replace(after, past=(*self.past, (gaps[""], {}))[-RECENT:]) if gaps[""] else after
        return after, evidence(gaps[""]), {juror: evidence(gaps[juror]) for juror in left_out}

    def hear(self, reports: Mapping[str, float], jurors: Collection[str]) -> tuple[Hearings, Mapping[str, float]]:
        """What to remember after a round's reports, and by client what its last turn says: z = (c - p) r."""
        number = jurors_number(reports, set(jurors) - set(self.turns))
        if number is None:
            return replace(self, turns={}), {}
        coins = {client: inside - chance for client, (inside, chance) in self.turns.items()}
        after = Hearings({}, (*self.past, (number, coins))[-RECENT:])
        if not (self.past and coins):
            return after, {}
        past_coins = np.array([[earlier.get(client, 0.0) for client in coins] for _, earlier in self.past])
        x = np.array([*coins.values()])
        z = x * surprises(number, x, np.array([told for told, _ in self.past]), past_coins)
        return after, dict(zip(coins, z.tolist(), strict=True))
