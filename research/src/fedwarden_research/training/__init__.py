"""Training on a GPU captured in CUDA graphs: the entry points of the group ``fedwarden.training``."""

from __future__ import annotations

from fedwarden.sim.training.engine import Engine

from .cuda_graph import Graphs
from .model_graph import ModelGraphs


def stacked(engine: Engine) -> Graphs:
    """Steps of all clients at once, and the data on the device."""
    assert engine.stacked is not None
    x, y = engine.x.to(engine.device), engine.y.to(engine.device)
    return Graphs(engine.stacked, engine.layout, engine.training, x, y)


def one_model(engine: Engine) -> ModelGraphs:
    """The same for steps of the model as it is, of one client."""
    x, y = engine.x.to(engine.device), engine.y.to(engine.device)
    return ModelGraphs(engine.model, engine.layout, engine.training, engine.task, x, y)
