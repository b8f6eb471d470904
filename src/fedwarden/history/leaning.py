"""Which way what a client does leans over its rounds, where what it does in a round is a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from ..core.remembered import Remembered
from ..core.stats import Mask, Scores
from ..core.types import Ids, State
from .evidence import RECENT


def leaning(effects: NDArray[np.float64]) -> Scores:
    """How far an effect (n, C) on the outputs is to raise a single one of C classes.

        s_i = C / (C - 1) max(0, max_c e_ic)^2 / |e_i|^2,   each e_i less its mean

    1 if only one class is raised, and always for two classes; 0 where there is no effect.

    >>> leaning(np.array([[3.0, 0.0, 0.0], [3.0, 3.0, 0.0], [0.0, 0.0, 0.0]])).round(6).tolist()
    [1.0, 0.25, 0.0]
    """
    off = effects - effects.mean(axis=1, keepdims=True)
    size, classes = np.square(off).sum(axis=1), off.shape[1]
    most = np.square(np.maximum(off.max(axis=1), 0.0)) * classes / max(classes - 1, 1)
    return np.asarray(np.divide(most, size, out=np.zeros_like(size), where=size > 0), dtype=np.float64)


@register("history", "leaning", exempt={"always-worse": "without effects all clients that count have the same score"})
@dataclass(frozen=True)
class Leaning:
    """How far the effects of a client lean to a single class, over the rounds in which it had some.

        m_t = m_{t-1} + (e_t / |e_t| - m_{t-1}) / min(t, 10), e_t less its mean;   score = s(m_t)

    A trigger leads to the same class in every round; what data of another kind do changes while the model learns them.
    The first column of the values is not 0 in the rounds that count, and the other columns are the effect e_t. A client
    has a score of 0 in other rounds. Where there are no other columns nothing tells the two apart: the score is 1.
    """

    parts: ClassVar[bool] = True

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        counts = (values if values.ndim == 1 else values[:, 0]) > 0
        if values.ndim == 1 or not counts.any():
            return state, counts.astype(np.float64)
        effects = values[counts, 1:]
        ids = tuple(client for client, counted in zip(client_ids, counts, strict=True) if counted)
        known = Remembered.of(state)
        rounds, *means = known.columns(ids, (0.0,) * (effects.shape[1] + 1))
        effects = effects - effects.mean(axis=1, keepdims=True)
        sizes = np.linalg.norm(effects, axis=1, keepdims=True)
        unit = effects / np.where(sizes > 0, sizes, 1.0)
        now = np.transpose(means)
        now = now + (unit - now) / np.minimum(rounds + 1, RECENT)[:, None]
        scores = np.zeros(len(client_ids))
        scores[counts] = leaning(now)
        return known.updated(ids, [rounds + 1, *now.T]), scores
