"""Backdoors that a new model has learned: found by the size of their triggers, unlearned, and kept out."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from ..core.generators import torch_rng
from ..core.notes import Note
from ..core.stats import Mask, Scores
from ..core.types import Cohort, Server
from ..models.batched import at_home, evaluating
from ..models.layout import Layout
from ..models.triggers import State, Triggers, linear_layers, search, strengthened, turned, unlearn
from ..rules.gesd import gesd

EVERY = 5  # rounds between searches; what was found is unlearned in every round
IMAGES = 200  # of the server's that are searched on
FEW = 32  # images that each client's model is run on
SMALL = math.log(2.0)  # a taught trigger is less than half as large as the median class's
LEVEL = 0.05  # and an outlier among all classes at this level
LEAST = 0.7  # of the images that a trigger turns into its class; the size of one that works less often says nothing
AGAIN = 3  # searches in a round at most, as one trigger may hide another
MOST = 12  # triggers that are kept, the latest: each one makes a round a little longer
CLASSES = 100  # at most: the search runs as many models at once


def taught(triggers: Triggers) -> Tensor:
    """The positions of triggers that clients taught: less than half the median size, and outliers, of all that work.

    >>> masks = torch.tensor([40.0, 50.0, 45.0, 44.0, 48.0, 5.0, 3.0])[:, None, None, None]
    >>> rates = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.2])
    >>> taught(Triggers(masks, masks, rates, torch.arange(7))).tolist()
    [5]
    """
    works = torch.nonzero(triggers.rates > LEAST)[:, 0]
    if not len(works):
        return works
    small = -triggers.sizes[works].clamp(min=1e-6).log()
    outliers = torch.from_numpy(gesd(small.cpu().double().numpy(), LEVEL)).to(small.device)
    return works[outliers & (small - small.quantile(0.5) > SMALL)]


def by_few(gains: NDArray[np.float64]) -> Mask:
    """Of triggers that clients strengthen by gains (n, K), those that most clients do not teach.

        median_i g_ik <= max_i g_ik / 3

    A mark that belongs to a class is learned again by all clients that hold the class: on real writers, the median
    client then gains .39 to .72 of the largest gain. For a backdoor's mark it is .01 to .28.

    >>> by_few(np.array([[3.0, 0.9], [0.5, 1.0], [0.4, 0.7]])).tolist()
    [True, False]
    """
    return np.asarray(np.median(gains, axis=0) <= gains.max(axis=0) / 3)


def suits(server: Server) -> bool:
    """Whether a server can look for triggers: it has images, and a model with 3 to 100 classes to run on them."""
    x = server.probe
    if server.model is None or not isinstance(x, Tensor) or x.ndim != 4 or len(x) < 2 or not x.is_floating_point():
        return False
    if not linear_layers(server.model):
        return False
    with evaluating(server.model):
        outputs = server.model(at_home(x[:2], server.model))
    return isinstance(outputs, Tensor) and outputs.ndim == 2 and 2 < outputs.shape[1] <= CLASSES


@dataclass(frozen=True)
class Removed:
    """A trigger that was found and unlearned: its class, its size and the median one, how often it worked and works.

    ``picture`` shows it as the address of an image, black where it has no pixel.
    """

    label: int
    size: float
    usual: float
    before: float
    after: float
    picture: str = ""

    @property
    def note(self) -> Note:
        return Note.of(
            "trigger_removed",
            label=self.label,
            size=round(self.size, 1),
            usual=round(self.usual, 1),
            before=round(self.before, 3),
            after=round(self.after, 3),
            picture=self.picture,
        )


def picture(image: Tensor) -> str:
    """An image (c, h, w) of one or three channels as the address of a PNG; empty for other channels.

    >>> picture(torch.zeros(1, 2, 2))[:22], picture(torch.zeros(2, 2, 2))
    ('data:image/png;base64,', '')
    """
    channels, height, width = image.shape
    if channels not in (1, 3):
        return ""
    shade = (
        (image / image.abs().amax().clamp(min=1e-9)).clamp(0, 1).mul(255).byte().permute(1, 2, 0).reshape(height, -1)
    )
    lines = b"".join(b"\0" + bytes(row) for row in shade.tolist())

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@dataclass(frozen=True, eq=False)
class Cleaner:
    """Looks for triggers in a new model every few rounds, and unlearns all that were found in every round."""

    model: nn.Module
    layout: Layout
    images: Tensor

    @classmethod
    def of(cls, server: Server) -> Cleaner | None:
        """From what a server holds; None where it has no model or no images to run it on."""
        if not suits(server):
            return None
        assert server.model is not None
        assert isinstance(server.probe, Tensor)
        return cls(server.model, Layout.of(server.model), at_home(server.probe[:IMAGES], server.model))

    def clean(
        self, params: Tensor, known: Triggers | None, round: int
    ) -> tuple[Tensor, Triggers | None, list[Removed]]:
        """The model without the known triggers and those that are found in it, all triggers, and what was found."""
        state, removed = self.layout.unflatten(params), list[Removed]()
        with evaluating(self.model):
            if known:
                state = unlearn(self.model, state, self.images, known)
            if round % EVERY == 0:
                state, known, removed = self._search(state, known, round)
        return (self.layout.flatten(state) if known else params), known, removed

    def _search(self, state: State, known: Triggers | None, round: int) -> tuple[State, Triggers | None, list[Removed]]:
        removed, rng = list[Removed](), torch_rng(0, "triggers", round)

        def call(images: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self.model, state, (images,))
            return outputs

        classes = call(self.images[:2]).shape[1]
        for _ in range(AGAIN):
            triggers = search(call, self.images, classes, rng)
            where = taught(triggers)
            if not len(where):
                break
            some, usual = triggers[where], float(triggers.sizes.quantile(0.5))
            state = unlearn(self.model, state, self.images, some)
            columns = (some.labels, some.sizes, some.rates, turned(call, self.images, some))
            for label, size, before, after in zip(*(column.tolist() for column in columns), strict=True):
                shown = some[some.labels == label]
                removed.append(Removed(label, size, usual, before, after, picture(shown.masks[0] * shown.patterns[0])))
            known = some if known is None else known.followed(some)[-MOST:]
        return state, known, removed

    def gains(self, cohort: Cohort, known: Triggers) -> tuple[Scores, Triggers | None]:
        """How much each client's update strengthens the known triggers, in nats, and those that a minority teaches."""
        found = strengthened(self.model, cohort, self.images[:FEW], known)
        found = np.where(np.isfinite(found), found, 0.0)  # a client that sends NaN must not make marks be forgotten
        lasting = torch.from_numpy(by_few(found)).to(known.labels.device)
        return found.max(axis=1), known[lasting] if lasting.any() else None
