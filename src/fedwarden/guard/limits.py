"""The limits of what is let in, as plain values; a run's description is read without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..core.stats import Counts, Weights


@dataclass(frozen=True)
class Admission:
    """The limits of what is let in.

    A client's example count is clipped to ``count_ratio`` times the cohort's median count, and its share of the
    total weight to ``max_share``; ``shares`` names clients that may hold more of it, such as a site that truly has half
    of the data. An update more than ``norm_ratio`` times as long as the median one is rejected. What is not measured,
    such as BatchNorm's statistics, is what the ``"median"`` of the clients says, or their ``"mean"``. ``known``
    restricts who may answer.
    """

    count_ratio: float | None = 1.0
    max_share: float | None = 1 / 3
    known: frozenset[str] | None = None
    norm_ratio: float | None = 1000.0
    buffers: Literal["median", "mean"] = "median"
    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count_ratio is not None and not self.count_ratio >= 1:
            raise ValueError(f"count_ratio is at least 1, or none; got {self.count_ratio}")
        for name, share in {"max_share": self.max_share, **self.shares}.items():
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"{name}: a share lies in (0, 1], or is none; got {share}")
        if self.norm_ratio is not None and not self.norm_ratio > 1:
            raise ValueError(f"norm_ratio is more than 1, or none; got {self.norm_ratio}")
        if self.buffers not in ("median", "mean"):
            raise ValueError(f"buffers are the clients' 'median' or 'mean'; got {self.buffers!r}")

    def clip(self, client_ids: Sequence[str], counts: Counts) -> Counts:
        """The counts of these clients that are believed."""
        ratios, most = np.full(len(counts), self.count_ratio or np.inf), np.full(len(counts), self.max_share or 1.0)
        for i, client in enumerate(client_ids if self.shares else ()):
            if client in self.shares:
                ratios[i], most[i] = np.inf, self.shares[client]
        return clip_counts(counts, ratios, most)


def clip_counts(counts: Counts, ratios: Counts, shares: Weights) -> Counts:
    """Counts that no client can use to own the model.

        c_i <- min(c_i, r_i * lower median(c));   then the largest c with c_i <= s_i * sum(c)

    Shares of less than 1 in all cannot be kept: each client then gets its part of them.

    >>> counts, free, half = np.array([10.0, 10.0, 20.0, 1e9]), np.full(4, np.inf), np.full(4, 0.5)
    >>> clip_counts(counts, ratios=np.full(4, 10.0), shares=np.ones(4)).tolist()
    [10.0, 10.0, 20.0, 100.0]
    >>> clip_counts(counts, free, half).tolist(), clip_counts(counts, free, half / 4).tolist()
    ([10.0, 10.0, 20.0, 40.0], [10.0, 10.0, 10.0, 10.0])
    """
    if not len(counts):
        return counts.astype(np.float64)
    clipped = np.minimum(counts.astype(np.float64), ratios * float(np.quantile(counts, 0.5, method="lower")))
    if (clipped <= shares * clipped.sum()).all():
        return clipped
    order = np.argsort(-clipped / shares, kind="stable")
    for k in range(1, len(order)):
        # with the k that exceed their shares most cut to these, total = their shares * total + the rest
        cut, rest = order[:k], order[k:]
        held = shares[cut].sum()
        if held < 1 and (total := clipped[rest].sum() / (1 - held)) >= (clipped / shares)[rest[0]]:
            return np.asarray(np.minimum(clipped, shares * total), dtype=np.float64)
    return np.asarray(shares * (clipped / shares).min(), dtype=np.float64)
