"""Low-rank adapters in a guarded round: pairs of factors, checks of replies, conversion to coordinates and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import ConfigError, nearest
from ..core.types import Cohort, Reported, first_columns
from ..core.words import listed
from ..updates.adapters import Factors, Layers, approximated, coordinates, truncated
from ..updates.survey import LARGEST
from ..updates.updates import Updates
from .admission import Letter
from .arrays import Scaled, Unfit, row

KINDS = {"lora": {"lora_A": "lora_B", "lora_embedding_A": "lora_embedding_B"}}
"""The names of the two factors, as parts of the names of arrays, by the kind of the adapter."""
CUT = "adapters_cut"
"""Metric: the norm of what truncation to the rank of the model removes, relative to the norm of the sum."""
LARGER = 4  # times the model's rank: a round grows with (sum of ranks)^2, by 1.8 if one of 8 clients sends four times
Array = NDArray[Any]
Shape = tuple[int, ...]


class Place(Protocol):
    """One array of the model; ``shaped`` gives it another shape."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    def shaped(self, shape: Shape) -> Self: ...


def partner(name: str, factors: Mapping[str, str]) -> str | None:
    """The name of the second factor if ``name`` is that of a first one, else None.

    >>> partner("layer.0.query.lora_A.default.weight", KINDS["lora"])
    'layer.0.query.lora_B.default.weight'
    """
    parts = name.split(".")
    found = next((i for i, part in enumerate(parts) if part in factors), None)
    return None if found is None else ".".join([*parts[:found], factors[parts[found]], *parts[found + 1 :]])


def unmeasured(names: Sequence[str], shapes: Sequence[Shape], measured: Sequence[tuple[int, int]]) -> set[str]:
    """The arrays that begin none of the ``measured`` columns: they stay at the clients, or enter no distance."""
    counted = {start for start, _ in measured}
    return {name for name, start in first_columns(names, shapes).items() if start not in counted}


def arrays(layers: Sequence[Array | Scaled]) -> list[Array]:
    """Layers whose factors can be multiplied; :class:`Unfit` if one is still of integers with scales."""
    if any(isinstance(layer, Scaled) for layer in layers):
        raise Unfit.of("adapters_scaled")
    return [layer for layer in layers if not isinstance(layer, Scaled)]


@dataclass(frozen=True)
class Adapters:
    """How adapters are named, the rank of the global model, and the scale of each client.

    ``rank`` is by default that of the initial model. A client of rank r adds alpha / r times the product of its
    factors, as in peft. ``alpha`` is by default the rank of the model; ``alphas`` names the clients with another alpha.
    No client's rank exceeds ``max_rank``, by default four times the rank of the model: see :data:`LARGER`.
    """

    kind: str = "lora"
    rank: int | None = None
    alpha: float | None = None
    alphas: Mapping[str, float] = field(default_factory=dict)
    max_rank: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"there are no adapters of the kind {self.kind!r}; {nearest(self.kind, KINDS)}")
        for key, rank in {"rank": self.rank, "max_rank": self.max_rank}.items():
            if rank is not None and (not isinstance(rank, int) or rank < 1):
                raise ConfigError(f"adapters: {key} is a whole number of at least 1; got {rank!r}")
        scales = {"alpha": self.alpha, **{f"alphas.{client}": alpha for client, alpha in self.alphas.items()}}
        for key, alpha in scales.items():
            if alpha is not None and not (isinstance(alpha, int | float) and 0 < alpha < math.inf):
                raise ConfigError(f"adapters: {key} is a number above 0; got {alpha!r}")

    @classmethod
    def of(cls, spec: str | Mapping[str, Any] | Adapters | None) -> Adapters | None:
        """Adapters from the name of their kind or from a table; None: the model has none.

        >>> Adapters.of("lora") == Adapters.of({"kind": "lora"})
        True
        """
        if spec is None or isinstance(spec, Adapters):
            return spec
        if not isinstance(spec, str | Mapping):
            raise ConfigError(f'adapters is a kind or a table, as "lora" or {{"kind": "lora"}}; got {spec!r:.60}')
        table = {"kind": spec} if isinstance(spec, str) else spec
        known = [part.name for part in fields(cls)]
        for key in table:
            if key not in known:
                raise ConfigError(f"adapters has no option {key!r}; {nearest(str(key), known)}")
        return cls(**table)

    def pairs(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """The positions of the factors A and B of each pair among the model's arrays."""
        factors, places = KINDS[self.kind], {name: i for i, name in enumerate(names)}
        wanted = [(i, second) for i, name in enumerate(names) if (second := partner(name, factors)) is not None]
        found = [(i, places[second]) for i, second in wanted if second in places]
        seconds = [i for i, name in enumerate(names) if not set(name.split(".")).isdisjoint(factors.values())]
        if odd := sorted({i for i, _ in wanted}.union(seconds) - {i for pair in found for i in pair}):
            raise ConfigError(f"the model's array {names[odd[0]]!r} is a factor of {self.kind} without its partner")
        if not found:
            raise ConfigError(
                f"the model has no pair of {self.kind} factors; expected names with {listed(sorted(factors))}, got "
                f"{', '.join(map(repr, names[:3]))}: leave adapters out, or send the arrays under peft's names"
            )
        return found

    def firsts(self, names: Sequence[str]) -> list[str]:
        """The names of the first factors."""
        return [names[i] for i, _ in self.pairs(names)]

    def shared(self, names: Sequence[str], staying: Collection[str]) -> list[tuple[int, int]]:
        """The pairs that are judged and combined; those ``staying`` at the clients are not, with both factors."""
        pairs = self.pairs(names)
        if split := next((pair for pair in pairs if len({names[i] in staying for i in pair}) > 1), None):
            i, j = sorted(split, key=lambda i: names[i] not in staying)
            raise ConfigError(
                f"personal: {names[i]!r} stays at the clients and its partner {names[j]!r} does not, but the product "
                "of the two is judged: let both stay, or none"
            )
        return [pair for pair in pairs if names[pair[0]] not in staying]

    def ranked(self, places: Sequence[Place], sent: Mapping[str, Shape]) -> list[Any]:
        """The model's arrays with the ranks that one client sent, or :class:`Unfit` for an impossible rank.

        The first factor's shape sets the rank; all other shapes are checked against the result.
        """
        fitted = list(places)
        for i, j in self.pairs([place.name for place in places]):
            first, second = places[i], places[j]
            shape = sent.get(first.name, ())
            most = min(math.prod(first.shape[1:]), second.shape[0], self.max_rank or LARGER * first.shape[0])
            if shape and shape[0] != first.shape[0]:
                if not 1 <= shape[0] <= most:
                    raise Unfit.of("adapter_rank", array=first.name, rank=shape[0], most=most)
                fitted[i] = first.shaped((shape[0], *first.shape[1:]))
                fitted[j] = second.shaped((second.shape[0], shape[0], *second.shape[2:]))
        return fitted

    def check(self, names: Sequence[str], layers: Sequence[Array | Scaled]) -> None:
        """Raise :class:`Unfit` for factors that are not finite or too large, before they are combined with others."""
        layers = arrays(layers)
        for i in [i for pair in self.pairs(names) for i in pair]:
            if not (np.abs(layers[i]) <= LARGEST).all():
                raise Unfit.of("update_not_finite", most=LARGEST)

    def ranks(self, names: Sequence[str], layers: Sequence[Array | Scaled]) -> tuple[int, ...]:
        """The rank of each pair."""
        layers = arrays(layers)
        return tuple(len(layers[i]) for i, _ in self.pairs(names))

    def brought(
        self, names: Sequence[str], model: Sequence[Array], ranks: Sequence[int], client: str | None = None
    ) -> list[Array]:
        """The model with its pairs approximated at other ranks, in the scale of ``client`` if one is given."""
        made = list(model)
        for (i, j), rank in zip(self.pairs(names), ranks, strict=True):
            factors = Factors.of(model[i], model[j])
            (new,) = approximated([factors], rank)
            scale = self._scale(None, factors.rank, factors.rank) / self._scale(client, rank, factors.rank)
            made[i], made[j] = _like(Factors(new.a, new.b * scale), model[i], model[j])
        return made

    def fold(
        self,
        round: int,
        letters: Sequence[Letter],
        names: Sequence[str],
        model: Sequence[Array],
        measured: Sequence[tuple[int, int]],
        reported: Reported,
    ) -> Folded:
        """The cohort of n clients: arrays that are not factors, unchanged, and n coordinates per pair of factors.

        The coordinates have the distances and angles of the products. ``measured`` are column ranges of the flat model.
        """
        shapes = [a.shape for a in model]
        apart = unmeasured(names, shapes, measured)
        pairs = self.shared(names, apart)
        factors = {i for pair in pairs for i in pair}
        others = [i for i in range(len(model)) if i not in factors]
        base = [model[i].reshape(-1).astype(np.float64) for i in others]
        came = [arrays(letter.layers) for letter in letters]
        rows: list[list[Any]] = [row([own[i] for i in others]) for own in came]
        ranges, end = [], 0
        for i, values in zip(others, base, strict=True):
            if names[i] not in apart:
                ranges.append((end, end + len(values)))
            end += len(values)
        head, columns = end, {}
        alike: dict[Any, list[tuple[int, int]]] = {}  # layers of one shape are computed together
        for i, j in pairs:
            alike.setdefault((shapes[i], shapes[j], *(own[i].shape for own in came)), []).append((i, j))
        layers, backs = [], []
        for group in alike.values():
            whole = [Factors.of(model[i], model[j]) for i, j in group]
            sent = [[Factors.of(own[i], own[j]) for i, j in group] for own in came]
            usual, ranks = whole[0].rank, [part[0].rank for part in sent]
            if any(rank < usual for rank in ranks):
                whole = approximated(whole, usual)
            scales = [self._scale(x.client_id, rank, usual) for x, rank in zip(letters, ranks, strict=True)]
            layers.append(Layers.of(whole, sent, self._scale(None, usual, usual), scales))
            found, back = coordinates(*layers[-1].products())
            backs.append(back)
            for parts, values in zip(rows, found.swapaxes(0, 1), strict=True):
                parts.append(torch.from_numpy(values.reshape(-1)))
            for i, _ in group:
                columns[names[i]] = end
                ranges.append((end, end + len(letters)))
                end += len(letters)
        flat = torch.from_numpy(np.concatenate([*base, np.zeros(end - head)]))
        cohort = Cohort(
            round,
            [letter.client_id for letter in letters],
            Updates.of(rows, flat, ranges) if rows else Updates.empty(end),
            np.array([letter.count for letter in letters]),
            reported=reported,
            layers=columns,
        )
        return Folded(cohort, self, list(alike.values()), others, list(model), layers, backs)

    def _scale(self, client: str | None, rank: int, usual: int) -> float:
        """The factor of a client's product, or of the model's if ``client`` is None; ``usual`` is the model's rank."""
        own = self.alphas.get(client) if client is not None else None
        return (own or self.alpha or usual) / rank


@dataclass(frozen=True, eq=False)
class Folded:
    """A cohort in the coordinates of one round, with what converts them back to the model's arrays."""

    cohort: Cohort
    adapters: Adapters
    groups: Sequence[Sequence[tuple[int, int]]]
    others: Sequence[int]
    model: list[Array]
    layers: Sequence[Layers]
    backs: Sequence[NDArray[np.float64]]

    def unfold(self, update: Tensor) -> tuple[list[Array], dict[str, float]]:
        """The arrays of the new model, and the metric ``adapters_cut``."""
        made, flat = list(self.model), update.detach().cpu().double().numpy()
        if not flat.any():
            return made, {}
        sizes = [made[i].size for i in self.others] + [back.shape[0] * back.shape[1] for back in self.backs]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        for i, part in zip(self.others, parts, strict=False):
            new = made[i] + part.reshape(made[i].shape)
            made[i] = new if made[i].dtype.kind == "f" else np.rint(new)
        lost = total = 0.0
        found = zip(self.groups, self.layers, self.backs, parts[len(self.others) :], strict=True)
        for group, layers, back, part in found:
            whole = [Factors.of(self.model[i], self.model[j]) for i, j in group]
            usual, rank = whole[0].rank, self.adapters.rank or whole[0].rank
            coefficients = layers.combined((part.reshape(len(group), 1, -1) @ back)[:, 0])
            news, left_out, all_of_it = truncated(layers, coefficients, rank, whole)
            scale = self.adapters._scale(None, rank, usual)
            for (i, j), new in zip(group, news, strict=True):
                made[i], made[j] = _like(Factors(new.a, new.b / scale), self.model[i], self.model[j])
            lost, total = lost + left_out, total + all_of_it
        return made, {CUT: math.sqrt(lost / total) if total else 0.0}


def at_rank(model: Mapping[str, Any], rank: int, kind: str = "lora") -> dict[str, Array]:
    """The arrays of a model with its adapters at another rank, for a client that trains them at that rank.

    >>> made = at_rank({"q.lora_A": np.eye(2), "q.lora_B": np.diag([1.0, 3.0])}, rank=1)
    >>> {name: array.shape for name, array in made.items()}
    {'q.lora_A': (1, 2), 'q.lora_B': (2, 1)}
    """
    names, adapters = list(model), Adapters(kind)
    layers = [np.asarray(array) for array in model.values()]
    many = len(adapters.pairs(names))
    return dict(zip(names, adapters.brought(names, layers, [rank] * many), strict=True))


def _like(factors: Factors, a: Array, b: Array) -> tuple[Array, Array]:
    """Factors in the dimensions and dtypes of the model's."""
    new_a, new_b = factors.a.reshape(factors.rank, *a.shape[1:]), factors.b.reshape(len(b), factors.rank, *b.shape[2:])
    return new_a.astype(a.dtype), new_b.astype(b.dtype)
