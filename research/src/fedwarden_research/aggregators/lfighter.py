"""The group of clients whose output neurons move less alike (LFighter, against flipped labels)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwarden.aggregators.common import counted, widen
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import register
from fedwarden.core.stats import Mask, Weights
from fedwarden.core.types import Aggregate, Cohort, Server, State
from fedwarden.updates.gram import cosines, squared_distances
from fedwarden.updates.updates import Updates

Matrix = NDArray[np.float64]
STEPS = 300  # of k-means, which stands still much earlier


def relevant_neurons(weight: Matrix, bias: Matrix) -> list[int]:
    """The two output neurons that moved most, summed over the clients: likely source and target of flipped labels.

        m_c = sum_i ||W_i[c]|| + |b_i[c]|

    Jebreel et al., LFighter: Defending against the label-flipping attack in federated learning, Neural Networks 170
    (2024). ``weight`` is (n, classes, features), ``bias`` (n, classes). One or two neurons are all relevant.

    >>> relevant_neurons(np.array([[[3.0, 4.0], [0.0, 1.0], [2.0, 0.0]]]), np.array([[0.0, 0.0, 4.0]]))
    [0, 2]
    """
    moved = (np.linalg.norm(weight, axis=2) + np.abs(bias)).sum(axis=0)
    return sorted(np.argsort(-moved, kind="stable")[:2].tolist())


def two_means(squares: Matrix) -> Mask:
    """The rows of one of the two clusters of k-means, from the squared distances of the rows alone.

        ||x_i - mean of C||^2 = mean_{j in C} d_ij^2 - 1/2 mean_{j, k in C} d_jk^2

    Lloyd (1982). It starts from every client and the one farthest from it, and the least sum of squares wins, so that
    there is no chance in it. Equal rows are one cluster: all False.

    >>> points = np.array([0.0, 1.0, 9.0, 8.5])
    >>> two_means((points[:, None] - points) ** 2).tolist()
    [True, True, False, False]
    """
    first = squares < squares[squares.argmax(axis=1)]  # a start a row: who is nearer to that client than to the other
    for _ in range(STEPS):
        one, two = _to_centre(squares, first), _to_centre(squares, ~first)
        last, first = first, one < two
        if (first == last).all():
            break
    one, two = _to_centre(squares, first), _to_centre(squares, ~first)
    return np.asarray(first[int(np.minimum(one, two).sum(axis=1).argmin())])


def _to_centre(squares: Matrix, members: NDArray[np.bool_]) -> Matrix:
    """For each group (a row of ``members``) the squared distance of all to its mean; infinite for an empty group."""
    size = members.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (members @ squares) / size
        spread = (members * mean).sum(axis=1, keepdims=True) / size / 2
    return np.where(size > 0, mean - spread, np.inf)


def dissimilarity(similarity: Matrix) -> float:
    """How unlike the members of a cluster are: 1 less the mean of each one's lowest cosine; 0 for one alone.

        1 - 1/|C| sum_{i in C} min_{j in C} cos(x_i, x_j)

    Jebreel et al. (2024). Differs from the authors' code, where the cosine of a client with itself is 0 and so is the
    lowest of clients that agree: it is 1 here, as the angle is 0 in arXiv 2207.01982.

    >>> dissimilarity(np.array([[1.0, 0.5], [0.5, 1.0]]))
    0.5
    """
    return 1.0 - float(similarity.min(axis=1).mean())


def lfighter(weight: Matrix, bias: Matrix) -> Mask:
    """The clients of the larger and less dense of two clusters of what the relevant neurons' weights did.

        keep the cluster C with the larger |C| / n * dissimilarity(C)

    Jebreel et al. (2024): attackers pull the same two neurons the same way, honest clients differ. Where both are
    equal the larger cluster is kept, and where all are equal everybody.

    >>> honest, flipped = [[[3.0], [0.0]], [[3.0], [-3.0]], [[1.0], [-3.0]]], [[[-2.0], [2.0]], [[-2.0], [2.0]]]
    >>> lfighter(np.array(honest + flipped), np.zeros((5, 2))).tolist()
    [True, True, True, False, False]
    """
    n = len(weight)
    if n < 3:
        raise ValueError(f"lfighter needs n >= 3 clients; got n={n}")
    data = weight[:, relevant_neurons(weight, bias)].reshape(n, -1)
    centred = data - data[np.argsort(np.linalg.norm(data, axis=1), kind="stable")[n // 2]]
    squares = squared_distances(centred @ centred.T)
    first, similarity = two_means(squares), np.where(squares > 0, cosines(data @ data.T), 1.0)  # equal zeros are alike
    if not first.any():
        return ~first
    one, two = ((c.sum() / n * dissimilarity(similarity[np.ix_(c, c)]), c.sum()) for c in (first, ~first))
    return first if one >= two else ~first


def output_layer(updates: Updates, classes: int | None, features: int | None) -> tuple[Matrix, Matrix]:
    """What each update does to the output layer: the weight (n, classes, features) and the bias (n, classes).

    They are the last measured columns. Where the sizes are not given, the last two layers of the updates tell them.

    >>> weight, bias = output_layer(Updates.of([[np.ones(9), np.arange(6.0), np.zeros(2)]]), None, None)
    >>> weight.tolist(), bias.tolist()
    ([[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]], [[0.0, 0.0]])
    """
    if classes is None or features is None:
        sizes = [stop - start for start, stop in updates.measured][-2:]
        if len(sizes) < 2 or sizes[0] % sizes[1]:
            raise ConfigError(
                "lfighter needs the output layer's weight and bias as the last two layers of an update; the last have "
                f"{' and '.join(map(str, sizes))} entries: give classes and features, or fw.Server(model=...) to "
                "Warden.equip"
            )
        classes, features = sizes[1], sizes[0] // sizes[1]
    entries = classes * (features + 1)
    if min(classes, features) < 1 or entries > sum(stop - start for start, stop in updates.measured):
        raise ValueError(
            f"lfighter needs an output layer of classes * (features + 1) <= d measured entries; got classes={classes}, "
            f"features={features}, d={sum(stop - start for start, stop in updates.measured)}"
        )
    last = _last_columns(updates, entries).double().cpu().numpy()
    return last[:, : classes * features].reshape(len(updates), classes, features), last[:, classes * features :]


def _last_columns(updates: Updates, size: int) -> Tensor:
    parts: list[Tensor] = []
    for segment in reversed([s for s in updates.segments if s.measured]):
        start = max(segment.start, segment.stop - size)
        parts.insert(0, updates.block(segment, start, segment.stop))
        size -= segment.stop - start
        if not size:
            break
    return torch.cat(parts, dim=1)


@register(
    "aggregator",
    "lfighter",
    exempt={
        "translation": "angles and lengths are taken from zero",
    },
)
@dataclass(frozen=True)
class LFighter:
    """The mean of the clients whose output neurons differ as those of honest clients do; made against flipped labels.

    The output layer, ``classes`` neurons of ``features`` weights and a bias each, is the last of the model: its size is
    taken from the server's model, or from the updates where they come in layers.
    """

    classes: int | None = None
    features: int | None = None
    weighted: bool = True

    def __post_init__(self) -> None:
        if (self.classes is None) != (self.features is None):
            raise ValueError(f"classes and features go together; got {self.classes} and {self.features}")

    def equip(self, server: Server) -> LFighter:
        if server.model is None or self.classes is not None:
            return self
        shapes = [tuple(parameter.shape) for parameter in server.model.parameters()][-2:]
        if len(shapes) < 2 or len(shapes[0]) < 2 or shapes[1] != shapes[0][:1]:
            raise ConfigError(
                "lfighter needs a model whose last two parameters are the weight (classes, features) and the bias "
                f"(classes,) of its output layer; this one ends with {' and '.join(map(str, shapes)) or 'none'}"
            )
        return replace(self, classes=shapes[0][0], features=int(np.prod(shapes[0][1:])))

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep, kept, counts = counted(cohort, weights, self.weighted)
        shares = np.where(lfighter(*output_layer(kept, self.classes, self.features)), counts, 0.0)
        shares = shares / shares.sum()
        return state, widen(Aggregate(kept.weighted_sum(shares), shares), keep, len(cohort))
