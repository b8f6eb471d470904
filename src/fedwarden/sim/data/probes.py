"""What a server that holds no samples of its clients' kind watches on: public data, or samples made from the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast, get_args

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...core.generators import torch_rng
from ...core.registry import make
from ...models.layout import Layout
from ...signals.probe import Kind, draw_probe, synthetic_probe
from ..scenario import Scenario
from .sources import Dataset


def foreign_probe(
    scenario: Scenario, data: Dataset, model: nn.Module, layout: Layout
) -> Tensor | Callable[[Tensor], Tensor]:
    """Samples that ``data.probe_from`` asks for; optimised ones are made anew from each round's global model.

    Noise has the mean and deviation of the inputs by channel, which a federation agrees on; here those of the test set.
    """
    config, kind, size = scenario.data, scenario.data.probe_from.name, scenario.data.probe

    def rng() -> torch.Generator:
        return torch_rng(scenario.seed, "probe")

    if kind in get_args(Kind) and not data.x_test.is_floating_point():
        raise ConfigError(f"data.probe_from = {kind!r} makes inputs of real numbers; this data has token ids")
    if kind not in get_args(Kind):
        public = make("dataset", kind, **config.probe_from.options).x_train
        if public.shape[1:] != data.x_test.shape[1:]:
            raise ConfigError(
                f"data.probe_from needs samples of shape {tuple(data.x_test.shape[1:])}; {kind!r} has "
                f"{tuple(public.shape[1:])}"
            )
        home = next(model.parameters()).device
        return draw_probe(public, size, rng=rng()).to(home)
    axes = [0, *range(2, data.x_test.ndim)]
    mean, std = data.x_test.mean(dim=axes).tolist(), data.x_test.std(dim=axes).tolist()
    shape = tuple(data.x_test.shape[1:])

    def made(params: Tensor) -> Tensor:
        held = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(layout.unflatten(params))
        try:
            return synthetic_probe(model, shape, size, cast(Kind, kind), mean, std, rng=rng())
        finally:
            model.load_state_dict(held)

    return made(layout.flatten(model.state_dict())) if kind == "noise" else made
