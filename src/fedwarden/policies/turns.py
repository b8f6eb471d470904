"""Clients in doubt take turns: each is in the model in most rounds, and few of them are in it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.protocols import FOR_GOOD, Findings
from ..core.registry import register
from ..core.seeds import numpy_rng
from ..core.stats import Scores, Weights, among

TENTH = 0.1  # of the clients on trial at once; of its rounds that a client in doubt misses
PAIR = 2.0  # clients on trial at once, of few; among fewer than three times as many nothing can be told apart


def chance(doubted: int, clients: int, most: float, share: float, least: float) -> float:
    """The probability that a client in doubt is in the model of a round.

        p = min(most, max(least, share * n) / k)

    k of n clients are in doubt: on average no more than max(least, share * n) of them are in at once.

    >>> [round(chance(k, 20, most=0.9, share=0.1, least=2.0), 3) for k in (1, 2, 4, 8)]
    [0.9, 0.9, 0.5, 0.25]
    """
    return min(most, max(least, share * clients) / max(doubted, 1))


def draw(client_ids: Sequence[str], chances: Scores, secret: int, round: int) -> Weights:
    """1 for the clients whose turn it is, each by a coin of its own with its own chance; 0 for the others.

    A coin hangs on the secret, the round and the client's name alone, so no client can foretell or influence its own
    or another one's. That makes the turns a randomised experiment, see :mod:`fedwarden.guard.jury`.

    >>> [draw("abcd", np.full(4, 0.5), secret=7, round=t).astype(int).tolist() for t in range(1, 4)]
    [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0]]
    """
    coins = [numpy_rng(secret, "turn", round, client).random() for client in client_ids]
    return np.asarray(np.array(coins) < chances, dtype=np.float64)


@register("policy", "turns")
@dataclass(frozen=True)
class Turns:
    """Clients in doubt take turns; clients that proved harmful are excluded for good.

    A client in doubt is in the model with probability ``most``, and less where more than ``share`` of the clients, or
    ``least`` of them, are in doubt at once. In a round of fewer than ``few`` clients nothing can be told apart, and all
    of them stay in. With ``most = 0`` a client in doubt is left out for as long as the doubt lasts. Measured harm comes
    on top, however few clients there are: the chance falls with the capital of the bet that a client does harm, and
    rises with that of the bet that it helps.

        p_i = min(1, p H_i / K_i)

    Where jurors judge by the turns it stays between 1 - ``most`` and ``most``: a coin that always falls the same way
    tells nothing any more.
    """

    most: float = 1 - TENTH
    share: float = TENTH
    least: float = PAIR
    few: int = int(3 * PAIR)
    tries: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 <= self.most <= 1 and 0 <= self.share <= 1 and self.least >= 0 and self.few >= 1):
            raise ValueError(f"needs most and share in [0, 1], least >= 0 and few >= 1; got {self}")

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]:
        ids = findings.client_ids
        proven = [ids[i] for i in np.flatnonzero(findings.flagged).tolist()]
        excluded = {**excluded, **dict.fromkeys(proven, FOR_GOOD)}
        weights = self.chances(excluded, findings)
        drawn = np.flatnonzero((weights > 0) & (weights < 1))
        if len(drawn):
            weights[drawn] = draw([ids[i] for i in drawn.tolist()], weights[drawn], findings.secret, findings.round)
        return excluded, weights

    def chances(self, excluded: Mapping[str, int], findings: Findings) -> Scores:
        """The probability of each client of being in the model of the round."""
        n = len(findings.client_ids)
        chances = np.where(among(excluded, findings.client_ids), 0.0, 1.0)
        doubted = np.flatnonzero(findings.doubted & (chances > 0)) if len(findings.doubted) else np.zeros(0, int)
        p = 1.0 if n < self.few else chance(len(doubted), n, self.most, self.share, self.least)
        against = findings.against[doubted] if len(findings.against) else np.zeros(len(doubted))
        low, high = (min(p, 1.0 - self.most), max(p, self.most)) if findings.judged else (0.0, 1.0)
        chances[doubted] = np.clip(p * np.exp(-against), low, high)
        return chances

    def asks(self, client_id: str, excluded: Mapping[str, int]) -> bool:
        return excluded.get(client_id, 0) != FOR_GOOD
