"""Which client holds which rows of the training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError
from ...core.registry import register
from .sources import Dataset

Rows = list[NDArray[np.int64]]
Partition = Callable[[Dataset, int, np.random.Generator], Rows]


def dirichlet_split(labels: NDArray[np.int64], n: int, alpha: float, smallest: int, rng: np.random.Generator) -> Rows:
    """Each class divided among the clients by a draw from a symmetric Dirichlet distribution.

    Hsu et al., arXiv 1909.06335. Differs from the paper: drawn again, up to 1,000 times, until every client holds
    ``smallest`` rows.
    """
    if n * smallest > len(labels):
        raise ConfigError(f"{n} clients of at least {smallest} rows need {n * smallest} rows; there are {len(labels)}")
    for _ in range(1000):
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(n)]
        for k in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == k))
            cuts = (np.cumsum(rng.dirichlet(np.full(n, alpha)))[:-1] * len(rows)).astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        split = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, split)) >= smallest:
            return split
    raise ConfigError(
        f"no Dirichlet({alpha}) split into {n} clients of at least {smallest} rows in 1,000 draws; "
        "use fewer clients, a larger alpha or a smaller minimum"
    )


@register("partition", "iid")
@dataclass(frozen=True)
class IID:
    """Random equal parts."""

    def __call__(self, data: Dataset, n: int, rng: np.random.Generator) -> Rows:
        return [np.sort(part) for part in np.array_split(rng.permutation(len(data.y_train)), n)]


@register("partition", "dirichlet")
@dataclass(frozen=True)
class Dirichlet:
    """Each class divided by a Dirichlet draw: small alpha, different clients."""

    alpha: float = 0.5
    smallest: int = 10

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive; got {self.alpha}")

    def __call__(self, data: Dataset, n: int, rng: np.random.Generator) -> Rows:
        return dirichlet_split(data.y_train.numpy(), n, self.alpha, self.smallest, rng)


@register("partition", "shards")
@dataclass(frozen=True)
class Shards:
    """Rows sorted by label and cut into shards, ``per_client`` of them to each client (McMahan et al., 2017)."""

    per_client: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.per_client <= 1000:
            raise ValueError(f"per_client is at least 1 and at most 1000; got {self.per_client}")

    def __call__(self, data: Dataset, n: int, rng: np.random.Generator) -> Rows:
        order = np.argsort(data.y_train.numpy(), kind="stable")
        shards = np.array_split(order, n * self.per_client)
        picks = rng.permutation(len(shards)).reshape(n, self.per_client)
        return [np.sort(np.concatenate([shards[i] for i in pick])) for pick in picks]


@register("partition", "parity")
@dataclass(frozen=True)
class Parity:
    """``size`` random rows to each client, a share ``even`` of them of even classes; what is left goes to nobody.

    As in Brunner and Montuoro, arXiv 2409.13875, where a shift moves the ratio of even to odd classes. Without a size
    the clients get as many rows as the rarer kind allows.
    """

    size: int | None = None
    even: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.even <= 1 or (self.size is not None and self.size < 1):
            raise ValueError(f"even lies in [0, 1] and size is at least 1; got {self.even} and {self.size}")

    def __call__(self, data: Dataset, n: int, rng: np.random.Generator) -> Rows:
        order = rng.permutation(len(data.y_train))
        odd = data.y_train.numpy()[order] % 2 == 1
        stock = {"even": order[~odd], "odd": order[odd]}
        shares = {"even": self.even, "odd": 1 - self.even}
        size = self.size or min(int(len(stock[k]) / (n * share)) for k, share in shares.items() if share)
        counts = {"even": round(self.even * size), "odd": size - round(self.even * size)}
        for kind, count in counts.items():
            if n * count > len(stock[kind]):
                raise ConfigError(
                    f"{n} clients of {count} samples of {kind} classes need {n * count}; there are {len(stock[kind])}: "
                    "lower the partition's size, or data.reserve"
                )
        return [np.sort(np.concatenate([stock[k][i * c : (i + 1) * c] for k, c in counts.items()])) for i in range(n)]


@register("partition", "owner")
@dataclass(frozen=True)
class Owner:
    """A few clients hold a class alone: a ``share`` of its rows, in equal parts, and unless ``only`` others besides.

    ``owners`` are the clients' positions. What is left of the class goes to the other clients; the rows of the other
    classes go to all clients, or with ``only`` to those that own nothing. They are dealt out at random, in equal parts,
    or with ``alpha`` by a Dirichlet draw for each class.
    """

    label: int = 0
    owners: Sequence[int] = (0,)
    share: float = 1.0
    only: bool = False
    alpha: float | None = None
    smallest: int = 10

    def __post_init__(self) -> None:
        if not self.owners or min(self.owners) < 0 or len(set(self.owners)) < len(self.owners):
            raise ValueError(f"owners are different clients, numbered from 0, and at least one; got {[*self.owners]}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share lies in (0, 1]; got {self.share}")
        if self.alpha is not None:
            Dirichlet(self.alpha)

    def __call__(self, data: Dataset, n: int, rng: np.random.Generator) -> Rows:
        if max(self.owners) >= n or len(self.owners) == n:
            raise ConfigError(
                f"partition 'owner' needs owners from 0 to {n - 1} and another client; got {[*self.owners]} of {n}"
            )
        labels = data.y_train.numpy()
        mine = rng.permutation(np.flatnonzero(labels == self.label))
        if len(mine) < len(self.owners):
            raise ConfigError(
                f"partition 'owner': {len(self.owners)} owners of class {self.label} need a row each; the training "
                f"data have {len(mine)}"
            )
        owned = max(round(self.share * len(mine)), len(self.owners))
        ordinary = [i for i in range(n) if i not in self.owners]
        parts: list[Rows] = [[] for _ in range(n)]
        for client, rows in zip(self.owners, np.array_split(mine[:owned], len(self.owners)), strict=True):
            parts[client].append(rows)
        others = np.flatnonzero(labels != self.label)
        for rows, to, least in (
            (mine[owned:], ordinary, 0),
            (others, ordinary if self.only else range(n), self.smallest),
        ):
            for client, dealt in zip(to, self._deal(rows, labels, len(to), least, rng), strict=True):
                parts[client].append(dealt)
        return [np.sort(np.concatenate(part)) for part in parts]

    def _deal(
        self, rows: NDArray[np.int64], labels: NDArray[np.int64], k: int, least: int, rng: np.random.Generator
    ) -> Rows:
        """The rows in k parts."""
        if self.alpha is None or not len(rows):
            return np.array_split(rng.permutation(rows), k)
        return [rows[part] for part in dirichlet_split(labels[rows], k, self.alpha, least, rng)]


@register("partition", "large")
@dataclass(frozen=True)
class Large:
    """Random parts; that of each of the clients at the positions ``which`` is ``times`` as large as another's."""

    which: Sequence[int] = (0,)
    times: float = 10.0

    def __post_init__(self) -> None:
        if not self.which or min(self.which) < 0 or not self.times > 0:
            raise ValueError(
                f"which are clients, numbered from 0, and times is positive; got {[*self.which]} and {self.times}"
            )

    def __call__(self, data: Dataset, n: int, rng: np.random.Generator) -> Rows:
        if max(self.which) >= n:
            raise ConfigError(f"partition 'large' names clients {[*self.which]}; there are {n}, numbered from 0")
        sizes = np.where(np.isin(np.arange(n), self.which), self.times, 1.0)
        cuts = (np.cumsum(sizes / sizes.sum())[:-1] * len(data.y_train)).round().astype(int)
        return [np.sort(part) for part in np.split(rng.permutation(len(data.y_train)), cuts)]


@register("partition", "given", exempt={"random-rows": "the data set says who holds what"})
@dataclass(frozen=True)
class Given:
    """The clients the data set comes with, from ``first`` on."""

    first: int = 0

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"first is the number of a client, from 0 on; got {self.first}")

    def __call__(self, data: Dataset, n: int, rng: np.random.Generator) -> Rows:
        if data.clients is None:
            raise ConfigError("this data set comes without clients; choose partition 'iid', 'dirichlet' or 'shards'")
        if self.first + n > len(data.clients):
            raise ConfigError(
                f"this data set has {len(data.clients)} clients; asked for {self.first}..{self.first + n}"
            )
        return [np.asarray(rows) for rows in data.clients[self.first : self.first + n]]
