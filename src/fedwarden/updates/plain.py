"""The folds of updates in plain torch, block by block: the reference, and what runs on any device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Norms, Weights
from . import ranks
from .segments import Rows, give_back
from .sketch import Hashing

HELD = 1 << 24  # columns of memory-mapped rows of which pages may be held at once where single columns are read


def survey(updates: Rows, centre: Weights, shares: Weights, spread: bool) -> tuple[Norms, Norms, Norms, Tensor]:
    """Squared norms, lengths and distances, and the weighted sum: see ``Updates.survey``."""
    n, device = updates.n, updates.device
    c, s = (torch.as_tensor(v).to(device, updates.dtype) for v in (centre, shares))
    norms, lengths, distances = (torch.zeros(n, dtype=torch.float64, device=device) for _ in range(3))
    total = torch.empty(updates.d, dtype=updates.dtype, device=device)
    for segment, start, stop in updates.pieces():
        block = updates.block(segment, start, stop)
        total[start:stop] = s @ block
        found = squares(block)
        norms += found
        if segment.measured:
            lengths += found
        if segment.measured and spread:
            distances += squares(block - c @ block)
    sums = torch.stack([norms, lengths, distances]).cpu().numpy()  # waits for the device once
    return sums[0], sums[1], sums[2], total


def weighted_sum(rows: Rows, weights: Weights, into: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """sum_i weights_i x_i, with weights that are not 0; added to ``scale`` times ``into``, in its memory, if given."""
    w = torch.as_tensor(weights).to(rows.device, rows.dtype)
    out = torch.empty(rows.d, dtype=rows.dtype, device=rows.device) if into is None else into
    for segment, start, stop in rows.pieces():
        part = w @ rows.block(segment, start, stop)
        out[start:stop] = part if into is None else part.add_(into[start:stop], alpha=scale)
    return out


def ranked_mean(updates: Rows, low: int, high: int) -> Tensor:
    """In each column, the mean of the values of rank low to high - 1."""
    return updates.columns(lambda block: ranks.ranked_mean(block, low, high))


def nearest_mean(updates: Rows, keep: int) -> Tensor:
    """In each column, the mean of the ``keep`` values closest to the median."""
    return updates.columns(lambda block: ranks.nearest_mean(block, keep))


def gram(updates: Rows, origin: int) -> NDArray[np.float64]:
    """Inner products about one of the rows, of the rows and, last, of the zero vector.

    On a CPU in float64: a product in float32 is 1e-5 off after 40,000 columns on ARM, where it adds one by one.
    """
    n = updates.n + 1
    total = torch.zeros(n, n, dtype=torch.float64, device=updates.device)
    exact = torch.float64 if updates.device.type == "cpu" else updates.dtype
    for segment, start, stop in updates.pieces():
        if segment.measured:
            block = updates.block(segment, start, stop)
            centred = torch.cat([block, torch.zeros_like(block[:1])]).sub_(block[origin]).to(exact)
            total += centred @ centred.T
    return np.asarray(total.cpu().numpy(), dtype=np.float64)


def sample(updates: Rows, columns: NDArray[np.int64]) -> Tensor:
    """The (n, k) entries of the rows in k columns, which are given in ascending order."""
    found = [torch.empty(updates.n, 0, dtype=updates.dtype, device=updates.device)]
    for segment in updates.segments:
        first, last = np.searchsorted(columns, [segment.start, segment.stop])
        if first == last:
            continue
        places = columns[first:last] - segment.start
        inside = torch.from_numpy(places).to(updates.device)
        if segment.stack is not None:
            found.append(segment.stack.index_select(1, inside).to(updates.dtype))
            continue
        picked = torch.empty(updates.n, last - first, dtype=updates.dtype, device=updates.device)
        size, held = segment.stop - segment.start, 0
        parts = np.searchsorted(places, range(HELD, size, HELD)).tolist()
        for target, row in zip(picked, segment.rows, strict=True):
            for to, some in zip(target.tensor_split(parts), inside.tensor_split(parts), strict=True):
                to.copy_(row.index_select(0, some))
                held += min(size, HELD)
                if held >= HELD:
                    give_back(updates.maps)  # columns apart touch every page
                    held = 0
        give_back(updates.maps)
        found.append(picked)
    out = torch.cat(found, dim=1)
    return out if updates.base is None else out - updates.base[torch.from_numpy(columns).to(updates.device)]


def sketch(updates: Rows, hashing: Hashing) -> Tensor:
    """The rows as sketches (n, k), over the measured columns: see :class:`Hashing`."""
    out = torch.zeros(updates.n, len(hashing.signs), dtype=updates.dtype, device=updates.device)
    signs = torch.from_numpy(hashing.signs).to(out)
    for segment, start, stop in updates.pieces():
        if segment.measured:
            add_runs(out, updates.block(segment, start, stop), start, hashing, signs)
    return out


def add_runs(out: Tensor, block: Tensor, start: int, hashing: Hashing, signs: Tensor) -> None:
    """Add columns of the rows, from ``start`` on, to their sketches."""
    for a, b, entry, place, flip in hashing.runs(start, start + block.shape[1]):
        out[:, entry : entry + b - a].addcmul_(
            block[:, a - start : b - start], signs[place : place + b - a], value=flip
        )


def squares(block: Tensor) -> Tensor:
    """Squared norm of each row, in float64."""
    norms: Tensor = torch.linalg.vector_norm(block, dim=1)
    return norms.double().square()
