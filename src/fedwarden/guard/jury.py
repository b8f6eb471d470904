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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..core.stats import Scores, Weights

WORSE = "train/worse"  # the number that jurors report, by its name in a cohort
EXAMPLES = 512  # of its own that a juror measures: a share of 1/2 of them has a standard error of .02
RECENT = 50  # rounds that a number is compared with; 20 to 100 find as many attackers
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
class Hearings:
    """What a guard remembers for its jurors.

    ``turns`` are the coins and chances of the last round. ``past`` are the recent numbers of the jurors, each with the
    coins less chances of the clients that had taken turns.
    """

    turns: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    past: tuple[tuple[float, Mapping[str, float]], ...] = ()

    def without(self, clients: Collection[str]) -> Hearings:
        """The same where no coin decided about these clients."""
        return replace(self, turns={c: turn for c, turn in self.turns.items() if c not in clients})

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
