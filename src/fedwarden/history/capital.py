"""Evidence of harm as the capital of a bet on it: whoever does no harm is seldom held to have done any, in any run.

The guarantee. Let z_t be a client's harm in round t times the number of clients, clipped to +-clip. As long as its
expectation given the past does not exceed ``effect``, the capital that bets on more is a non-negative supermartingale.
By Ville's inequality it ever reaches c with probability at most 1/c: however long the run is, however the rounds depend
on each other and on other clients, and whatever the distribution. The clients' shares of the level add up to one at
most, those of clients that come later included. So the chance that ``ville`` at level alpha ever flags anybody who does
no more harm than that is at most alpha, in a whole run.

What it does not say. Harm is that on the server's samples: an honest client whose data are unlike them may do some. And
it is measured at the mean of all, which the others move as well. A round of too few clients to decide on anybody
counts for nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..core.registry import register
from ..core.remembered import Remembered
from ..core.stats import Mask, Scores
from ..core.types import Ids, State

TINY = float(np.finfo(np.float64).tiny)


class Account(NamedTuple):
    """What is remembered of clients: the log of the capital of the bet that a client does harm, and of the one that it
    helps; the mean and the variance of the clipped values, over how many rounds; and the share of the level.

    Under the empty name: how many clients were given a share, the first, and what the shares add up to, the last.
    """

    log_capital: Scores
    log_help: Scores
    means: Scores
    variances: Scores
    rounds: Scores
    shares: Scores


LAPSE = math.log(20)  # a bet that a client helps is worth 1 / .05 at most, so that a few harmful rounds undo it


def stake(means: Scores, variances: Scores, effect: float, most: float) -> Scores:
    """How much to bet on a value above ``effect``, from the values of earlier rounds alone.

        lambda = min(g / (v + g^2), most),   g = max(m - effect, 0)

    The first is near the stake that lets the capital grow fastest where mean m and variance v stay as they were:
    Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables by Betting (2024), their aGRAPA. Differs from
    the paper: no first guess of m and v, so nothing is bet in a client's first round.

    >>> stake(np.array([0.1, 0.3, 0.4]), np.array([0.0, 0.36, 0.0]), effect=0.1, most=1.6).round(3).tolist()
    [0.0, 0.5, 1.6]
    """
    gain = np.maximum(means - effect, 0.0)
    spread = variances + np.square(gain)
    return np.minimum(np.divide(gain, spread, out=np.zeros_like(gain), where=spread > 0), most)


def grow(log_capital: Scores, values: Scores, stakes: Scores, effect: float) -> Scores:
    """The log of the capital after one more round of betting.

        log K_t = log K_{t-1} + log(1 + lambda_t (z_t - effect)),   K_0 = 1

    Where E[z_t | past] <= effect and lambda_t >= 0 is known before z_t, E[K_t | past] <= K_{t-1}. Ville (1939):
    P(sup_t K_t >= c) <= 1 / c.

    >>> np.exp(grow(np.zeros(3), np.array([0.4, 0.1, -0.4]), np.ones(3), effect=0.1)).round(3).tolist()
    [1.3, 1.0, 0.5]
    """
    return np.asarray(log_capital + np.log1p(stakes * (values - effect)), dtype=np.float64)


def share_of_newcomers(given: float, known: int, new: int) -> float:
    """The share of the level that each of ``new`` clients gets when ``known`` clients hold the share ``given`` already.

        p = (1 - given) / (new + max(known, new))

    The shares add up to less than 1, whoever comes later, and no client's share depends on what it does. The n clients
    of the first round have 1 / (2n) each: room is kept for others, at a price of log 2 in evidence. The k-th client has
    about n / (2 k^2) where they come one by one. Shares of 6 / (pi k)^2 would depend on the order of the first ones.

    >>> share_of_newcomers(0.0, 0, 10), round(share_of_newcomers(0.5, 10, 1), 6), share_of_newcomers(0.5, 10, 10)
    (0.05, 0.045455, 0.025)
    """
    return max(1.0 - given, TINY) / (new + max(known, new))


@register("history", "capital")
@dataclass(frozen=True)
class Capital:
    """The log of the capital of a bet that a client does harm, times the client's share of the level.

    Values are losses; times the number of clients in good standing they are clipped to +-``clip``, and harm up to
    ``effect`` is none: with .1, the loss would be .1 lower if all did without what this client does. Other values are
    taken as they are, without ``times_clients``. ``stake`` is the most of the capital that one round can lose. A client
    that is away keeps its capital. Where the signal has parts there is a bet on each of them too; the smallest counts,
    without a share of the level for the parts.
    """

    clip: float = 0.4
    effect: float = 0.1
    stake: float = 0.8
    times_clients: bool = True
    parts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 <= self.effect < self.clip and 0 < self.stake < 1):
            raise ValueError(f"needs 0 <= effect < clip and 0 < stake < 1; got {self}")

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        if not len(values):
            return state, values
        values = values.T.reshape(-1, len(client_ids))  # a row for the signal and for each of its parts
        bets = len(values)
        known, width = Remembered.of(state), len(Account._fields) * bets
        new = [c for c in client_ids if c not in known]
        total = known.columns(("",), (0.0,) * width)[:, 0].copy()
        share = share_of_newcomers(total[-1], int(total[0]), len(new)) if new else 0.0
        total[0], total[-1] = total[0] + len(new), total[-1] + len(new) * share
        blank = (0.0,) * (width - bets) + (share,) * bets
        account = known.columns(client_ids, blank).reshape(-1, *values.shape)
        log_capital, log_help, means, variances, rounds, shares = account
        n = len(client_ids) if trusted is None or not trusted.any() else int(trusted.sum())
        z = np.clip(n * values if self.times_clients else values, -self.clip, self.clip)
        most = self.stake / (self.clip + self.effect)
        log_capital = grow(log_capital, z, stake(means, variances, self.effect, most), self.effect)
        log_help = np.minimum(grow(log_help, -z, stake(-means, variances, 0.0, most), 0.0), LAPSE)
        off, rounds = z - means, rounds + 1
        variances = (rounds - 1) / rounds * (variances + off**2 / rounds)
        now = Account(log_capital, log_help, means + off / rounds, variances, rounds, shares)
        of_parts = log_capital[1:].min(axis=0, initial=np.inf)
        columns = np.column_stack([np.concatenate(now), total])
        return known.updated((*client_ids, ""), columns), np.minimum(log_capital[0] + np.log(shares[0]), of_parts)

    def against(self, state: State, client_ids: tuple[str, ...]) -> tuple[Scores, Scores]:
        """The logs of the capitals of the bets that a client does harm, and that it helps: the least of the parts."""
        width = len(next(iter(state.values()), Account._fields))
        columns = Remembered.of(state).columns(client_ids, (0.0,) * width)
        log_capital, log_help, *_ = columns.reshape(len(Account._fields), -1, len(client_ids))
        return log_capital.min(axis=0), log_help.min(axis=0)
