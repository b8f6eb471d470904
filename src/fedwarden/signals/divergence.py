"""How far a client's representations moved: which samples look alike to its model, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import ConfigError, one_of
from ..core.registry import register
from ..core.stats import Mask, Scores
from ..core.types import Cohort, Reading, Server
from ..models.activations import Layer, find_layers, listen
from ..models.affinity import affinity, squares
from ..models.batched import at_home, each_model, evaluating
from ..models.layout import Layout

Kind = Literal["absolute", "relative", "cosine"]


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
    apart, own = squares(a, b).unbind(-1)
    found: Tensor = _similarity(apart, own, squares(b, b)[..., 1], a.shape[-1], kind)
    return found


def _similarity(apart: Any, own: Any, other: Any, size: int, kind: Kind) -> Any:
    """The same from ||A - B||^2, ||A||^2, ||B||^2 and N; 2 <A, B> = ||A||^2 + ||B||^2 - ||A - B||^2."""
    if kind == "cosine":
        return (own + other - apart) / (2 * (own * other) ** 0.5)
    return 1 - apart**0.5 / (size if kind == "absolute" else other**0.5)


def hierarchical(deltas: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """One number of the layers' divergences, later ones discounted by what moved before them: (..., L) -> (...).

        D = sum_l delta_l exp(-gamma sum_{k<l} delta_k)

    arXiv 2605.22266.

    >>> hierarchical(np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.0]]), gamma=np.log(4)).tolist()
    [0.75, 0.5]
    """
    before = np.cumsum(deltas, axis=-1) - deltas
    return np.asarray((deltas * np.exp(-gamma * before)).sum(axis=-1), dtype=np.float64)


def log_ratio(values: Scores, trusted: Mask) -> Scores:
    """The logarithm of each value over the median of the trusted ones; what is not a number stays so.

    >>> log_ratio(np.array([1.0, 2.0, 4.0]), np.ones(3, bool)).round(4).tolist()
    [-0.6931, 0.0, 0.6931]
    """
    floor = max(float(np.nanmedian(values[trusted])), np.finfo(np.float64).tiny) * 1e-6
    logs = np.log(np.maximum(values, floor))
    return np.asarray(logs - np.nanmedian(logs[trusted]), dtype=np.float64)


def model_affinities(model: nn.Module, probe: Tensor) -> list[Tensor]:
    """The affinities (N, N) of the samples in every layer of rectified units of a model."""
    layers, samples = find_layers(model, probe), at_home(probe, model)
    with evaluating(model):
        return [a.cpu() for a in listen(model, samples, layers, affinity)[0]]


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
    samples = at_home(probe, model)

    def look() -> list[Tensor]:
        held, output = listen(model, samples, layers, affinity)
        total = output.sum(dtype=torch.float32) if isinstance(output, Tensor) else samples.new_zeros(())
        return [total, *held]

    finite, found, reference = list[Tensor](), list[Tensor](), list[Tensor]()
    with evaluating(model):
        for outputs, *affinities in each_model(look, model, cohort):  # the global model comes first
            reference = reference or affinities
            finite.append(outputs.isfinite())
            found.append(torch.stack([squares(a, b) for a, b in zip(affinities, reference, strict=True)], dim=1))
    apart, own = torch.cat(found).cpu().double().numpy().transpose(2, 0, 1)
    deltas: NDArray[np.float64] = 1 - _similarity(apart[1:], own[1:], own[0], len(samples), kind)
    usual, *numbers = torch.cat(finite).tolist()
    deltas[~(np.array(numbers, bool) | (not usual)) | ~np.isfinite(cohort.updates.lengths())] = np.nan
    return deltas


@register("signal", "divergence")
@dataclass(frozen=True)
class Divergence:
    """Divergence of each client's activation patterns from the global model's, on samples that the server holds.

    The probe is the first ``probe`` samples of the server's, so these should be in random order. ``relative`` gives the
    logarithm of a client's divergence over the median one, on one scale for every model and round.
    """

    gamma: float = 1.0
    affinity: Kind = "absolute"
    probe: int = 128
    relative: bool = False
    server: Server | None = field(default=None, compare=False)

    words: ClassVar[str] = "its representations moved"

    def __post_init__(self) -> None:
        _check(self.gamma, self.affinity, self.probe)

    def equip(self, server: Server) -> Self:
        if server.model is None or server.probe is None:
            raise ConfigError(
                "divergence needs a server with a model and a probe; synthetic_probe makes one from nothing"
            )
        equipped = replace(self, server=server)
        try:
            _ = equipped._layers  # says before the first round if a model cannot be watched
        except ValueError as error:
            raise ConfigError(f"divergence: {error}") from error
        return equipped

    def __call__(self, cohort: Cohort) -> Reading:
        deltas = self._deltas(cohort)
        names = [layer.name for layer in self._layers if layer.axis is not None]
        values = hierarchical(deltas, self.gamma)
        if self.relative:
            values = log_ratio(values, cohort.reference)
        return Reading(values, dict(zip(names, deltas.T.copy(), strict=True)))

    def _deltas(self, cohort: Cohort) -> NDArray[np.float64]:
        """Remembered with the updates: a second look at a round, of this signal or one like it, runs no model again."""

        def make() -> NDArray[np.float64]:
            model, samples = self._held(cohort.params)
            return client_deltas(cohort, model, samples, self._layers, self.affinity)

        return cohort.updates.once((client_deltas, self.server, cohort.params, self.probe, self.affinity), make)

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        """The layers of the server's model."""
        return find_layers(*self._held())

    def _held(self, params: Tensor | None = None) -> tuple[nn.Module, Tensor]:
        """The server's model and samples; samples that are made of a model, by default of that one as it stands."""
        if self.server is None or self.server.model is None or self.server.probe is None:
            raise ValueError(
                "divergence runs the clients' models on samples of the server; equip it with fw.Server(model=..., "
                "probe=...) first, or give them to Warden.equip"
            )
        model, probe = self.server.model, self.server.probe
        if not isinstance(probe, Tensor):
            probe = probe(Layout.of(model).flatten(model.state_dict()) if params is None else params)
        samples = probe[: self.probe]
        _check(self.gamma, self.affinity, len(samples))
        return model, samples


def _check(gamma: float, kind: str, size: int) -> None:
    if not gamma >= 0:
        raise ValueError(f"gamma discounts later layers and is at least 0; got {gamma}")
    one_of("affinity", kind, Kind)
    if size < 2:
        raise ValueError(f"a probe needs at least 2 samples to compare; got {size}")
