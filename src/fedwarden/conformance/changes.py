"""The laws of a planned change of one client's data: its samples in, as many out, each in its place."""

from __future__ import annotations

import numpy as np
import torch

from ..attacks import Examples
from ..core.registry import lookup, make, parameters
from ..sim.changes import Change
from ..sim.data.sources import Dataset
from .component import Component
from .law import laws, require

OPTIONS = {"shares": {"nut": 0.6}, "columns": {"heat": 2.0}, "class": "nut"}  # lent to those that have them
NEW = {"class_new": {"class": "cog"}}


def subject(component: Component) -> Change:
    """The change, with options that ask for something."""
    known = parameters(lookup("change", component.name))
    lent = {key: value for key, value in OPTIONS.items() if key in known} | NEW.get(component.name, {})
    made: Change = make("change", component.name, **(lent | dict(component.options)))
    return made


def samples() -> tuple[Examples, Examples, Dataset]:
    """A client's samples of bolts and nuts, the reserve, which has cogs too, and the data set that they are of."""
    rng = np.random.default_rng(0)
    x, y = (
        torch.from_numpy(rng.normal(size=(90, 2)).astype(np.float32)),
        np.arange(90) % np.where(np.arange(90) < 30, 2, 3),
    )
    labels = torch.from_numpy(y)
    data = Dataset(x, labels, x, labels, 3, labels=("bolt", "nut", "cog"), columns={"heat": 0})
    return Examples(x[:30].clone(), y[:30].copy()), Examples(x[30:].clone(), y[30:].copy()), data


def made(change: Change) -> tuple[Examples, Examples, Examples]:
    """The same without the data set, and what the change makes of them."""
    own, pool, data = samples()
    return own, pool, change.change(own, pool, data, np.random.default_rng(1))


def samples_keep_their_form(change: Change) -> None:
    """Samples keep their number, shape and type, and some are changed."""
    own, _, (x, y) = made(change)
    got, want = (x.shape, x.dtype, y.shape, y.dtype), (own.x.shape, own.x.dtype, own.y.shape, own.y.dtype)
    require(got == want, f"expected {want}; got {got}")
    require(not (torch.equal(x, own.x) and np.array_equal(y, own.y)), "expected changed samples; got them as they were")


def samples_change_in_a_copy(change: Change) -> None:
    """Samples are changed only in what is returned."""
    own, pool, _ = made(change)
    for got, want in zip((own, pool), samples()[:2], strict=True):
        require(
            torch.equal(got.x, want.x) and np.array_equal(got.y, want.y), "expected samples as they were; got others"
        )


def generator_decides(change: Change) -> None:
    """The generator that is given decides, and no other."""
    torch.manual_seed(0)
    a = made(change)[2]
    torch.manual_seed(5)
    b = made(change)[2]
    require(torch.equal(a.x, b.x), "expected the same samples with the same generator; got others")


LAWS = laws(samples_keep_their_form, samples_change_in_a_copy, generator_decides)
