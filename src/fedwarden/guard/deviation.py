"""What differs in the update of a client in doubt: the layer that carries it, and the classes that it alone teaches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.notes import Value
from ..core.stats import Mask
from ..core.types import Cohort
from ..updates.sketch import spread_columns

ENTRIES = 1 << 18  # of all updates together that are looked at, as the signal alone does; it decides nothing
LEAST = 64  # columns of each layer, however many clients and layers there are
WORTH = 0.1  # of a deviation, beyond the median client's part of it: less is not worth a word
CLASSES = 2  # that are named, those moved most


def layer_shares(rows: Sequence[Tensor], sizes: Sequence[int], usual: Mask) -> NDArray[np.float64]:
    """The part of each client's squared deviation that lies in each layer, from some columns of every layer.

        s_il = (d_l / k_l) sum_j (x_ij - mu_j)^2 over the k_l columns j of layer l;   divided by its sum over l

    d_l is the layer's size, mu the mean over the usual clients. A client that does not deviate has shares of 0.

    >>> rows = [torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([[1.0], [1.0], [4.0]])]
    >>> layer_shares(rows, [1, 1], np.array([True, True, False])).tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    inside = torch.from_numpy(usual)
    far = [x.double().cpu() for x in rows]
    squares = [(x - x[inside].mean(dim=0)).square().mean(dim=1) * size for x, size in zip(far, sizes, strict=True)]
    found = torch.stack(squares, dim=1)
    total = found.sum(dim=1, keepdim=True)
    return np.asarray((found / torch.where(total > 0, total, 1.0)).numpy(), dtype=np.float64)


def against_others(biases: NDArray[np.float64], usual: Mask) -> NDArray[np.float64]:
    """What each client does to the output's bias against the usual clients, of which nearly all do the opposite.

        b_ic where b_ic > 0 and at most max(1, m / 10) of the m usual clients have b_kc > 0, or all with < 0;   else 0

    A step down the gradient raises the bias of the classes that a client has, and lowers those that it lacks.

    >>> biases = np.array([[-0.1, 0.2], [-0.2, -0.1], [-0.1, 0.1], [0.4, 0.3]])
    >>> against_others(biases, np.arange(4) < 3).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.4, 0.0]]
    """
    few = max(1, int(usual.sum()) // 10)
    rare = [sign * biases[usual] > 0 for sign in (1, -1)]
    up, down = ((sign * biases > 0) & (seen.sum(axis=0) <= few) for sign, seen in zip((1, -1), rare, strict=True))
    return np.where((up | down) & ~usual[:, None], biases, 0.0)


def deviations(cohort: Cohort, doubted: Mask, usual: Mask) -> dict[str, dict[str, Value]]:
    """What differs in each client in doubt, by client, for its note; of a model of one layer no layer is named.

    ``layer`` is where its part of the deviation lies most beyond that of the median usual client, by name, or by its
    place among so many ``layers``.
    """
    if not doubted.any() or usual.sum() < 2:
        return {}
    found: dict[str, dict[str, Value]] = {cohort.client_ids[i]: {} for i in np.flatnonzero(doubted).tolist()}
    ranges = cohort.updates.measured
    if len(ranges) > 1:
        most = max(ENTRIES // len(cohort) // len(ranges), LEAST)
        columns = [spread_columns([r], most) for r in ranges]
        sample = cohort.updates.sample(np.concatenate(columns)).split([len(c) for c in columns], dim=1)
        shares = layer_shares(sample, [b - a for a, b in ranges], usual)
        names = {first: name for name, first in cohort.layers.items()}
        middle = np.median(shares[usual], axis=0)
        for i in np.flatnonzero(doubted).tolist():
            k = int((shares[i] - middle).argmax())
            if shares[i, k] - middle[k] >= WORTH:
                layer = names.get(ranges[k][0], k + 1)
                found[cohort.client_ids[i]] |= {
                    "layer": layer, "layers": len(ranges), "share": float(shares[i, k]), "usual": float(middle[k]),
                }  # fmt: skip
    if (output := cohort.output) and output.size > 2:
        biases = cohort.updates.sample(np.arange(output.bias, output.bias + output.size)).double().cpu().numpy()
        moved = against_others(biases, usual)
        for i in np.flatnonzero(doubted & moved.any(axis=1)).tolist():
            first = [int(c) for c in np.argsort(-np.abs(moved[i]), kind="stable")[:CLASSES] if moved[i, c]]
            kinds = {
                "teaches": [c for c in first if moved[i, c] > 0],
                "unlearns": [c for c in first if moved[i, c] < 0],
            }
            found[cohort.client_ids[i]] |= {kind: tuple(classes) for kind, classes in kinds.items() if classes}
    return found
