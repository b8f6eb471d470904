"""Aggregation rules of the authors of BackFed as their code computes them: means and medians of weights and buffers.

Every rule returns what is added to the weights and to the running statistics. Checked against the server classes of
github.com/thinh-dao/BackFed at commit 735e603.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwarden_research.aggregators.flame import majority

Change = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Replies:
    """What ten clients send: changes of weights (n, d) and of running statistics (n, b), images held, batches seen.

    ``attackers`` is how many of them attack, and ``sizes`` are those of the tensors that the weights consist of.
    """

    updates: Tensor
    buffers: Tensor
    held: Tensor
    batches: Tensor
    attackers: int
    params: Tensor
    sizes: Sequence[int]


def fedavg(replies: Replies, eta: float) -> Change:
    """The plain mean times the server's step: servers/fedavg_server.py."""
    return eta * replies.updates.mean(0), eta * replies.buffers.mean(0)


def norm_clipping(replies: Replies, eta: float, limit: float = 3.0) -> Change:
    """Updates no longer than the limit, weighted by the number of images, times the step: servers/weakdp_server.py.

    u = eta sum_i n_i / n x_i min(1, limit / ||x_i||);   running statistics are not clipped

    """
    shares = replies.held / replies.held.sum()
    short = (limit / replies.updates.norm(dim=1)).clamp(max=1)
    return eta * ((shares * short) @ replies.updates), eta * (shares @ replies.buffers)


def median(replies: Replies, eta: float) -> Change:
    """The lower median of every value replaces it: servers/median_server.py. There is no step."""
    return replies.updates.median(0).values, replies.buffers.median(0).values


def trimmed_mean(replies: Replies, eta: float, trim: float = 0.2) -> Change:
    """The mean without the int(trim n) least and largest of every value replaces it: servers/trimmed_mean_server.py."""
    n = len(replies.updates)
    cut = int(n * trim)
    least, largest = (rows.sort(0).values[cut : n - cut].mean(0) for rows in (replies.updates, replies.buffers))
    return least, largest


def krum_scores(rows: Tensor, batches: Tensor, f: int, layers: int = 20) -> Tensor:
    """The sum of the squared distances to the n - f - 2 nearest others: servers/multi_krum_server.py, lines 202 to 225.

        d_ij = ||x_i - x_j||^2 + layers (k_i - k_j)^2

    Each layer of BatchNorm counts its batches k, and the counters are part of the distance; 0 layers leave them out.

    >>> krum_scores(torch.tensor([[0.0], [1.0], [3.0], [9.0]]), torch.tensor([8.0, 8.0, 8.0, 8.0]), f=0).tolist()
    [10.0, 5.0, 13.0, 100.0]
    >>> krum_scores(torch.zeros(4, 1), torch.tensor([2.0, 2.0, 2.0, 6.0]), f=0).tolist()
    [0.0, 0.0, 0.0, 640.0]
    """
    n = len(rows)
    if n - f - 2 < 1:
        raise ValueError(f"multi_krum needs n >= f + 3 clients; got n={n}, f={f}")
    distances = torch.stack([((rows - row) ** 2).sum(1) for row in rows])
    distances = distances + layers * (batches[:, None] - batches) ** 2
    return distances.sort(1).values[:, 1 : n - f - 1].sum(1)


def multi_krum(replies: Replies, eta: float, counters: bool = True) -> Change:
    """The mean of those with the least scores, as many as are honest, times the step; f is the true number."""
    f = replies.attackers
    if not f:
        return fedavg(replies, eta)
    rows = torch.cat([replies.updates, replies.buffers], 1)
    kept = krum_scores(rows, replies.batches, f, 20 if counters else 0).argsort()[: len(rows) - f]
    return eta * replies.updates[kept].mean(0), eta * replies.buffers[kept].mean(0)


def flame(replies: Replies, eta: float, noise: float = 0.001, rng: torch.Generator | None = None) -> Change:
    """The majority by the cosines of the last layers, cut to the median length, plus noise: servers/flame_server.py.

    The cosines are those of the weights, not of the updates; running statistics are not cut; the noise is as large as
    the median length times the spread of each tensor.
    """
    heads = (replies.params + replies.updates)[:, -sum(replies.sizes[-2:]) :].double().cpu().numpy()
    unit = heads / np.linalg.norm(heads, axis=1, keepdims=True)
    distances = (1 - unit @ unit.T).clip(min=0)
    np.fill_diagonal(distances, 0.0)
    kept = torch.from_numpy(majority(np.maximum(distances, distances.T))).to(replies.updates.device)
    lengths = replies.updates.norm(dim=1)
    limit = lengths.median()
    change = eta * ((limit / lengths).clamp(max=1)[kept] @ replies.updates[kept]) / kept.sum()
    if noise:
        parts = (replies.params + change).split(list(replies.sizes))
        drawn = torch.randn(len(change), generator=rng, device=change.device)
        change = change + noise * limit * drawn * torch.cat([part.std().expand(len(part)) for part in parts])
    return change, eta * replies.buffers[kept].mean(0)
