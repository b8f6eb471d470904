"""What a participant or the server can do so that a change of data shows less.

Two measures need no function. More clients dilute the change: each has a smaller share of the average. Secure
aggregation removes nothing here: it hides single updates from the server, but the auditor reads only the average and
its own update, and masks that cancel in the sum leave both as they are.

The privacy of noise follows from its multiplier m, the deviation over the clipping norm C: T updates are one Gaussian
mechanism of multiplier m / sqrt(T), whose epsilon is known exactly. That compares an update with none at all
(sensitivity C); between any two data sets of the client it is 2 C, and the multiplier counts half.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri
from torch import Tensor


def clip(update: Tensor, norm: float) -> Tensor:
    """Shorten an update that is longer than a norm.

        u' = u min(1, C / ||u||)

    Abadi et al., Deep Learning with Differential Privacy, arXiv 1607.00133, algorithm 1, on a whole update.

    >>> clip(torch.tensor([3.0, 4.0]), 2.5).tolist()
    [1.5, 2.0]
    """
    if not norm > 0:
        raise ValueError(f"clipping needs a norm above 0; got {norm}")
    length = float(torch.linalg.vector_norm(update, dtype=torch.float64))
    return update if length <= norm else update * (norm / length)


def clip_and_noise(update: Tensor, norm: float, noise: float, rng: torch.Generator) -> Tensor:
    """Clip a client's update and add Gaussian noise in proportion: local differential privacy of the whole update.

        u' = clip(u, C) + N(0, (m C)^2 I),   m the noise multiplier

    McMahan et al., Learning Differentially Private Recurrent Language Models, arXiv 1710.06963. Differs from the
    paper: the client adds the noise itself, so that it need not trust the server.

    >>> clip_and_noise(torch.tensor([3.0, 4.0]), 5.0, 0.0, torch.Generator()).tolist()
    [3.0, 4.0]
    """
    return add_noise(clip(update, norm), noise * norm, rng)


def add_noise(aggregate: Tensor, deviation: float, rng: torch.Generator) -> Tensor:
    """Gaussian noise of a given deviation on every entry, as a server adds it to the average.

        a' = a + N(0, deviation^2 I)

    A client's clipped update of share p moves the average by at most p C: noise of deviation m p C hides it with
    multiplier m, which costs the model 1 / sqrt(n) of what n clients' own noise would.

    >>> add_noise(torch.zeros(3), 0.0, torch.Generator()).tolist()
    [0.0, 0.0, 0.0]
    """
    if not deviation >= 0:
        raise ValueError(f"noise has a deviation of at least 0; got {deviation}")
    noise = torch.randn(aggregate.shape, generator=rng, device=rng.device, dtype=aggregate.dtype)
    return aggregate + deviation * noise.to(aggregate.device)


def epsilon(noise: float, rounds: int, delta: float = 1e-5) -> float:
    """The privacy that T noisy updates of a client leave it: the smallest epsilon of (epsilon, delta).

        delta = Phi(1 / 2s - epsilon s) - exp(epsilon) Phi(-1 / 2s - epsilon s),   s = m / sqrt(T)

    Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy, arXiv 1805.06530, theorem 8; T Gaussian
    mechanisms of multiplier m are one of m / sqrt(T) (Dong et al., arXiv 1905.02383, corollary 2). It is exact, as no
    clients are sampled. Infinite without noise.

    >>> round(epsilon(noise=1.0, rounds=1, delta=1e-5), 2)
    4.38
    """
    if not (noise >= 0 and rounds >= 1 and 0 < delta < 1):
        raise ValueError(f"needs noise >= 0, rounds >= 1 and delta in (0, 1); got {noise}, {rounds} and {delta}")
    if noise == 0:
        return float("inf")
    s = noise / np.sqrt(rounds)

    def excess(e: float) -> float:
        return float(np.exp(log_ndtr(0.5 / s - e * s)) - np.exp(e + log_ndtr(-0.5 / s - e * s))) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, 0.5 / s**2 + max(-float(ndtri(delta)), 0.0) / s + 1.0))


def smooth(memory: Tensor | None, update: Tensor, keep: float) -> tuple[Tensor, Tensor]:
    """Send a moving average of one's updates: new memory, and what to send.

        s_t = k s_{t-1} + (1 - k) u_t,   s_1 = u_1

    Of a sudden change a part 1 - k^j shows after j rounds, instead of all of it at once.

    >>> memory, _ = smooth(None, torch.tensor([0.0]), keep=0.75)
    >>> smooth(memory, torch.tensor([4.0]), keep=0.75)[1].tolist()
    [1.0]
    """
    if not 0 <= keep < 1:
        raise ValueError(f"the part kept of the past lies in [0, 1); got {keep}")
    sent = update if memory is None else keep * memory + (1 - keep) * update
    return sent, sent
