"""How far a client's representations moved: which samples look alike to its model, layer by layer.

The patterns of a layer never leave it: while a model runs, each layer becomes the N x N matrix of its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal, Self, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.forward import at_home, at_once, each_model, still
from ..core.registry import register
from ..core.types import Cohort, Reading, Server
from ..core.updates import Updates
from .units import Layer, Listener, find_layers

Kind = Literal["absolute", "relative", "cosine"]

WIDTH = 2048  # columns of one product: float16 holds every integer up to 2048, and 128 rows of float32 fit a cache
KERNEL_SIZE = 1 << 14  # entries from which the compiled kernels pay for their start


def overlap(units: Tensor) -> Tensor:
    """How many units are on for both of each pair of samples, (..., N, n_l) -> (..., N, N); a unit is on above 0.

        G = sum over blocks of columns of a a^T,   a = 1[units > 0]

    Exact below 2^24 units: a block's product counts at most ``WIDTH`` of them, and float32 adds the blocks.

    >>> overlap(torch.tensor([[1.0, -1.0, 2.0], [3.0, 4.0, 0.0]])).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    size = units.shape[-1]
    if not units.is_cuda:
        on = torch.empty(*units.shape[:-1], min(WIDTH, size))
        parts = (torch.gt(part, 0, out=on[..., : part.shape[-1]]) for part in units.split(WIDTH, dim=-1))
        return torch.stack([a @ a.mT for a in parts]).sum(dim=0)
    width = min(WIDTH, size)
    whole = size // width * width
    on = torch.gt(units, 0, out=torch.empty(units.shape, dtype=torch.float16, device=units.device))
    blocks, rest = on[..., :whole].unflatten(-1, (-1, width)).movedim(-2, -3), on[..., whole:]
    gram: Tensor = (blocks @ blocks.mT).sum(dim=-3, dtype=torch.float32)
    return gram + rest @ rest.mT if whole < size else gram


def hamming(overlap: Tensor) -> Tensor:
    """In how many units each pair of samples differs, from how many are on for both: (..., N, N).

        H_ij = G_ii + G_jj - 2 G_ij

    >>> hamming(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    ones = overlap.diagonal(dim1=-2, dim2=-1)
    return ones[..., :, None] + ones[..., None, :] - 2 * overlap


@dataclass(frozen=True)
class Method:
    """How a layer's units (N, n_l) are held while a model runs, and the affinities (g, N, N) of g that were held.

    On a CPU with compiled kernels as packed bits, which are counted; elsewhere as the products themselves. Of stacked
    models only the signs are taken while they run: neither can be done under vmap.
    """

    hold: Callable[[Tensor], Tensor]
    affinities: Callable[[Tensor, int], Tensor]

    @classmethod
    def best(cls, device: torch.device, entries: int, stacked: bool = False) -> Method:
        kernels = _kernels() if device.type == "cpu" and entries >= KERNEL_SIZE else None
        sign = torch.sign if device.type == "cpu" else lambda units: units > 0  # each the quicker one there
        if kernels is None:
            if stacked:
                return cls(sign, lambda units, size: 1 - hamming(overlap(units)) / size)
            return cls(overlap, lambda counts, size: 1 - hamming(counts) / size)
        if stacked:
            return cls(sign, lambda units, size: _agreement(kernels, _pack(kernels, units), size))
        return cls(lambda units: _pack(kernels, units[None])[0], lambda words, size: _agreement(kernels, words, size))


def _pack(kernels: ModuleType, units: Tensor) -> Tensor:
    g, n, size = units.shape
    words = np.empty((g, -(-size // 64), n), np.int64)
    kernels.pack(units.float().contiguous().numpy(), words)
    return torch.from_numpy(words)


def _agreement(kernels: ModuleType, words: Tensor, size: int) -> Tensor:
    g, _, n = words.shape
    out = np.empty((g, n, n), np.float32)
    kernels.agreement(words.numpy(), size, out)
    return torch.from_numpy(out)


@cache
def _kernels() -> ModuleType | None:
    """The compiled kernels, imported on first use; None where numba is not installed."""
    return import_module("fedwarden.core.bits") if find_spec("numba") else None


def affinity(units: Tensor) -> Tensor:
    """The share of units in which each pair of samples agrees: (N, n_l) -> (N, N) in [0, 1].

        A[i, j] = 1 - Hamming(a(x_i), a(x_j)) / n_l

    arXiv 2605.22266. The units are bits, or pre-activations, which are on above 0.

    >>> affinity(torch.tensor([[True, True, False, False], [True, False, False, False]])).tolist()
    [[1.0, 0.75], [0.75, 1.0]]
    """
    method = Method.best(units.device, units.numel())
    return method.affinities(method.hold(units)[None], units.shape[1])[0]


def layer_similarity(a: Tensor, b: Tensor, kind: Kind = "absolute") -> Tensor:
    """How alike two models see the same N samples in one layer, from their affinities: (..., N, N) -> (...).

        absolute   s = 1 - ||A - B||_F / N
        relative   s = 1 - ||A - B||_F / ||B||_F
        cosine     s = <A, B> / (||A||_F ||B||_F)

    arXiv 2605.22266 states its normaliser in words; absolute is our reading of it. Absolute and cosine lie in [0, 1]
    and are symmetric; relative measures by the second model, which is the global one.

    >>> same, apart = torch.ones(2, 2), torch.eye(2)
    >>> [round(float(layer_similarity(same, apart, kind)), 4) for kind in ("absolute", "relative", "cosine")]
    [0.2929, 0.0, 0.7071]
    """
    if kind == "cosine":
        return (a * b).sum(dim=(-2, -1)) / (_norm(a) * _norm(b))
    return 1 - _norm(a - b) / (a.shape[-1] if kind == "absolute" else _norm(b))


def _norm(a: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(a, dim=(-2, -1))
    return norm


def hierarchical(deltas: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """One number of the layers' divergences, later ones discounted by what moved before them: (..., L) -> (...).

        D = sum_l delta_l exp(-gamma sum_{k<l} delta_k)

    arXiv 2605.22266.

    >>> hierarchical(np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.0]]), gamma=np.log(4)).tolist()
    [0.75, 0.5]
    """
    before = np.cumsum(deltas, axis=-1) - deltas
    return np.asarray((deltas * np.exp(-gamma * before)).sum(axis=-1), dtype=np.float64)


def model_affinities(model: nn.Module, probe: Tensor) -> list[Tensor]:
    """The affinities (N, N) of the samples in every layer of rectified units of a model."""
    layers, samples = find_layers(model, probe), at_home(probe, model)
    with still(model), Listener(model, samples, layers, affinity) as listener:
        return [a.cpu() for a in listener.run()[0]]


def divergence(
    model_a: nn.Module, model_b: nn.Module, probe: Tensor, gamma: float = 1.0, affinity: Kind = "absolute"
) -> float:
    """The geometric divergence of two models with equally many layers of rectified units, on the samples of a probe.

        D = hierarchical(1 - s_1, ..., 1 - s_L),   s_l = layer_similarity(A_l, B_l)

    arXiv 2605.22266. Does not depend on the order of a layer's units, nor on their scale.

    >>> a, b = (nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(2))
    >>> for model, bias in ((a, 0.0), (b, 9.0)):
    ...     _ = model[0].weight.data.fill_(1.0), model[0].bias.data.fill_(bias)
    >>> round(divergence(a, b, torch.tensor([[1.0], [-1.0]])), 4)  # apart to a, alike to b: sqrt(2) / 2
    0.7071
    """
    _check(gamma, affinity, len(probe))
    a, b = (model_affinities(model, probe) for model in (model_a, model_b))
    if len(a) != len(b):
        raise ValueError(f"models need equally many layers of rectified units; got {len(a)} and {len(b)}")
    deltas = [1 - float(layer_similarity(x, y, affinity)) for x, y in zip(a, b, strict=True)]
    return float(hierarchical(np.array(deltas), gamma))


def client_deltas(
    cohort: Cohort, model: nn.Module, probe: Tensor, layers: Sequence[Layer], kind: Kind = "absolute"
) -> NDArray[np.float64]:
    """1 - s_l between every client's model and the global one, (n, L); NaN for a model that gives no numbers."""
    samples, sizes = at_home(probe, model), [layer.size for layer in layers if layer.axis is not None]
    entries = len(samples) * sum(sizes)
    stack = at_once(model, entries)
    method = Method.best(samples.device, entries, stack > 1)

    def look() -> list[Tensor]:
        held, output = listener.run()
        return [output.sum(dtype=torch.float32) if isinstance(output, Tensor) else torch.zeros(()), *held]

    found: list[Tensor] = []
    with still(model), Listener(model, samples, layers, method.hold) as listener:
        for outputs, *held in each_model(look, model, cohort, stack):
            seen = [method.affinities(h, size) for h, size in zip(held, sizes, strict=True)]
            if not found:
                reference, usual = [a[0] for a in seen], outputs[0].isfinite()
            moved = [1 - layer_similarity(a, b, kind) for a, b in zip(seen, reference, strict=True)]
            found.append(torch.stack(moved, dim=1).where((outputs.isfinite() | ~usual)[:, None], torch.nan))
    deltas: NDArray[np.float64] = torch.cat(found[1:]).double().cpu().numpy()
    deltas[~np.isfinite(cohort.updates.lengths())] = np.nan
    return deltas


@register("signal", "divergence")
@dataclass(frozen=True)
class Divergence:
    """Divergence of each client's activation patterns from the global model's, on samples that the server holds.

    The probe is the first ``probe`` samples of the server's, so these should be in random order.
    """

    gamma: float = 1.0
    affinity: Kind = "absolute"
    probe: int = 128
    server: Server | None = None

    def __post_init__(self) -> None:
        _check(self.gamma, self.affinity, self.probe)

    def equip(self, server: Server) -> Self:
        if server.model is None or server.probe is None:
            raise ConfigError(
                "divergence needs a server with a model and a probe; synthetic_probe makes one from nothing"
            )
        equipped = replace(self, server=server)
        _ = equipped._layers  # a model that cannot be watched is told of before the first round
        return equipped

    def __call__(self, cohort: Cohort) -> Reading:
        known = self._read.get(cohort.updates)
        if known is None or known[0] is not cohort.params:
            known = self._read[cohort.updates] = cohort.params, self._measure(cohort)
        return known[1]

    def _measure(self, cohort: Cohort) -> Reading:
        model, samples = self._held
        deltas = client_deltas(cohort, model, samples, self._layers, self.affinity)
        names = [layer.name for layer in self._layers if layer.axis is not None]
        return Reading(hierarchical(deltas, self.gamma), dict(zip(names, deltas.T.copy(), strict=True)))

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        return find_layers(*self._held)

    @cached_property
    def _read(self) -> WeakKeyDictionary[Updates, tuple[Tensor | None, Reading]]:
        """What was read of updates that are still there: a second look at a round runs no model again."""
        return WeakKeyDictionary()

    @property
    def _held(self) -> tuple[nn.Module, Tensor]:
        if self.server is None or self.server.model is None or self.server.probe is None:
            raise ValueError(
                "divergence runs the clients' models on samples of the server; equip it with fw.Server(model=..., "
                "probe=...) first, or give them to Warden.equip"
            )
        samples = self.server.probe[: self.probe]
        _check(self.gamma, self.affinity, len(samples))
        return self.server.model, samples


def _check(gamma: float, kind: str, size: int) -> None:
    if not gamma >= 0:
        raise ValueError(f"gamma discounts later layers and is at least 0; got {gamma}")
    if kind not in get_args(Kind):
        raise ValueError(f"affinity is 'absolute', 'relative' or 'cosine'; got {kind!r}")
    if size < 2:
        raise ValueError(f"a probe needs at least 2 samples to compare; got {size}")
