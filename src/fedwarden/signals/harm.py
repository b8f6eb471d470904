"""What each client's update does to the loss on the server's labelled samples: the loss with it and without it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..core.notes import Note
from ..core.registry import register
from ..core.stats import Mask, Scores, Weights, shortening
from ..core.types import Cohort, Reading, Server
from ..models.batched import at_home, evaluating
from ..updates.formed import Steps
from .loss import Losses, client_losses, cross_entropies, labelled

WORST = 1e6  # the loss of a model that gives no numbers


def idle_steps(shares: Weights, within: Mask) -> tuple[Weights, Weights]:
    """Factors (a, b) of the step a_i m + b_i x_i from a weighted mean m to the one in which a client sent nothing.

        i in the mean:  m - w_i x_i        else, to the one with it:  m + w_i x_i

    w_i is the client's count over the sum of those in the mean.

    >>> [factors.tolist() for factors in idle_steps(np.array([0.25, 0.75, 0.5]), np.array([True, True, False]))]
    [[0.0, 0.0, 0.0], [-0.25, -0.75, 0.5]]
    """
    return np.zeros(len(shares)), np.where(within, -shares, shares)


def harms(losses: Scores, within: Mask) -> Scores:
    """Harm of each client, from the loss of the mean and then of the mean without it, or with it.

        d_i = L(mean) - L(mean without i) for i in the mean,   L(mean with i) - L(mean) for those who are not

    Positive where the model is better without the client. A loss that is no number counts as a very large one.

    >>> harms(np.array([1.0, 0.75, 1.25, np.inf]), np.array([True, True, False])).tolist()
    [0.25, -0.25, 999999.0]
    """
    known = np.minimum(np.nan_to_num(losses, nan=WORST, posinf=WORST), WORST)
    apart = known[0] - known[1:]
    return np.asarray(np.where(within, apart, -apart), dtype=np.float64)


def beyond_common(found: Scores, within: Mask) -> Scores:
    """Harm beyond that of the median client: what most clients do is what the federation learns, not one client's act.

        h_i = d_i - max(0, median d)

    Where one client alone holds a class, each update of the others pushes the model away from it, and the loss on the
    samples of that class rises. That harm is real and common, and accuses no client.

    >>> beyond_common(np.array([0.1, 0.2, 0.5]), np.ones(3, bool)).round(6).tolist()
    [-0.1, 0.0, 0.3]
    >>> beyond_common(np.array([-0.1, -0.2, 0.5]), np.ones(3, bool)).tolist()
    [-0.1, -0.2, 0.5]
    """
    return found - max(0.0, float(np.median(found[within])))


def absent_classes(labels: Tensor, outputs: Tensor) -> Tensor:
    """The classes of a classifier's outputs (k, C) of which the labels (k,) have no sample; none of another task's.

    >>> absent_classes(torch.tensor([0, 2, 0]), torch.zeros(3, 4)).tolist()
    [1, 3]
    """
    if labels.ndim != 1 or outputs.ndim != 2 or labels.is_floating_point():
        return torch.zeros(0, dtype=torch.long)
    seen = torch.zeros(outputs.shape[1], dtype=torch.bool, device=outputs.device)
    seen[labels.to(outputs.device).long()] = True
    return torch.nonzero(~seen)[:, 0]


def without_absent(losses: Losses, outputs: Tensor, labels: Tensor) -> Tensor:
    """The losses (k,) as if classes without a sample were no possible answer.

    On samples of all classes but one, teaching a model the last class can only raise the loss: its owner would be
    accused of harm. So the probe judges between the classes that it has samples of, and is silent about the others.

    >>> outputs, labels = torch.tensor([[2.0, 2.0, 9.0]] * 2), torch.tensor([0, 1])
    >>> without_absent(cross_entropies, outputs, labels).tolist()  # log 2: class 2 is absent
    [0.6931471824645996, 0.6931471824645996]
    """
    absent = absent_classes(labels, outputs).to(outputs.device)
    return losses(outputs.index_fill(1, absent, -math.inf) if len(absent) else outputs, labels)


@register("signal", "harm", exempt={"higher-is-suspicious": "an update that differs need not be a harmful one"})
@dataclass(frozen=True)
class Harm:
    """How much lower the loss on the server's labelled samples would be without the client's update.

    The mean is that of the clients in good standing, weighted by the counts that are believed: the model that the guard
    would make if it left no client out of this round. Excluded clients must not set what is harmful, and counts belong
    to it because a client harms by the weight that it has. Updates longer than ``shorten`` times the median one are
    shortened to that, and what is not trained is the median of all clients. Harm that the median client does as well is
    taken off, see :func:`beyond_common`; so are classes of which the samples have none, see :func:`without_absent`.
    """

    probe: int = 128
    shorten: float | None = 1.5
    server: Server | None = field(default=None, compare=False)
    words: ClassVar[str] = "the model is worse with it on the server's samples"

    def __post_init__(self) -> None:
        if self.probe < 1 or not (self.shorten is None or self.shorten > 0):
            raise ValueError(f"needs at least 1 sample of the probe and shorten > 0, or none; got {self}")

    def equip(self, server: Server) -> Self:
        labelled(server, "harm")
        return replace(self, server=server)

    def __call__(self, cohort: Cohort) -> Scores | Reading:
        model, probe, labels = labelled(self.server, "harm", self.probe)
        if cohort.params is None:
            raise ValueError("harm needs the round's global model; set Cohort.params")
        updates, within = cohort.updates, cohort.reference
        factors = shortening(updates.lengths(), within, self.shorten)
        shares = cohort.num_examples / cohort.num_examples[within].sum()
        mean = updates.survey(within, np.where(within, factors * shares, 0.0), spread=False).total.clone()
        agreed, _ = updates.agreed(np.ones(len(cohort), bool))  # of those within, most may copy others' weights
        for start, stop in updates.buffers:
            mean[start:stop], agreed = agreed[: stop - start], agreed[stop - start :]
        a, b = idle_steps(shares, within)
        around = replace(cohort, updates=Steps(updates, mean, a, b * factors), params=cohort.params.to(mean) + mean)
        judge = partial(without_absent, (self.server and self.server.losses) or cross_entropies)
        found = beyond_common(harms(client_losses(around, model, probe, labels, judge), within), within)
        warning = silence(model, probe, labels) if cohort.round == 1 else None
        return Reading(found, warning=warning) if warning else found


def silence(model: nn.Module, probe: Tensor, labels: Tensor) -> Note | None:
    """What is to be said of a probe that lacks classes."""
    with evaluating(model):
        outputs = model(at_home(probe[:1], model))
    absent = absent_classes(labels, outputs) if isinstance(outputs, Tensor) else ()
    return Note.of("probe_lacks", names=tuple(str(int(c)) for c in absent)) if len(absent) else None
