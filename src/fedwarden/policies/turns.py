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


def chance(doubted: int, clients: int, most: float, share: float, least: float) -> float:
    """The probability that a client in doubt is in the model of a round.

        p = min(most, max(least, share * n) / k)

    k of n clients are in doubt: on average no more than max(least, share * n) of them are in at once.

    >>> [round(chance(k, 20, most=0.9, share=0.1, least=2.0), 3) for k in (1, 2, 4, 8)]
    [0.9, 0.9, 0.5, 0.25]
    """
    return min(most, max(least, share * clients) / max(doubted, 1))


def draw(client_ids: Sequence[str], p: float, secret: int, round: int) -> Weights:
    """1 for the clients whose turn it is, each with probability p, 0 for the others; the number of them hardly varies.

    Of k clients, floor(k p) or one more have their turn. What is drawn hangs on the secret, the round and the clients'
    names alone, so no client can foretell or influence it.

    >>> [int(draw("abcd", 0.5, secret=7, round=t).sum()) for t in range(1, 6)]
    [2, 2, 2, 2, 2]
    """
    k = len(client_ids)
    many = int(k * p + numpy_rng(secret, "turns", round).random())
    coins = [numpy_rng(secret, "turn", round, client).random() for client in client_ids]
    weights = np.zeros(k)
    weights[np.argsort(coins, kind="stable")[:many]] = 1.0
    return weights


@register("policy", "turns")
@dataclass(frozen=True)
class Turns:
    """Clients in doubt take turns; clients that proved harmful are excluded for good.

    A client in doubt is in the model with probability ``most``, and less where more than ``share`` of the clients, or
    ``least`` of them, are in doubt at once. In a round of fewer than ``few`` clients nothing can be told apart, and all
    of them stay in. With ``most = 0`` a client in doubt is left out for as long as the doubt lasts.
    """

    most: float = 0.9
    share: float = 0.1
    least: float = 2.0
    few: int = 6
    tries: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 <= self.most <= 1 and 0 <= self.share <= 1 and self.least >= 0 and self.few >= 1):
            raise ValueError(f"needs most and share in [0, 1], least >= 0 and few >= 1; got {self}")

    def init(self) -> Mapping[str, int]:
        return {}

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]:
        ids, n = findings.client_ids, len(findings.client_ids)
        proven = [ids[i] for i in np.flatnonzero(findings.flagged).tolist()]
        excluded = {**excluded, **dict.fromkeys(proven, FOR_GOOD)}
        weights = np.where(among(excluded, ids), 0.0, 1.0)
        doubted = np.flatnonzero(findings.doubted & (weights > 0)) if len(findings.doubted) else np.zeros(0, int)
        if n >= self.few and len(doubted):
            p = chance(len(doubted), n, self.most, self.share, self.least)
            weights[doubted] = draw([ids[i] for i in doubted.tolist()], p, findings.secret, findings.round)
        return excluded, weights

    def asks(self, client_id: str, excluded: Mapping[str, int]) -> bool:
        return excluded.get(client_id, 0) != FOR_GOOD
