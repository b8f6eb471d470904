"""A federation from data in memory and a model of one's own, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path

from torch import nn

from ..core.config import parse
from ..core.errors import ConfigError
from ..core.registry import Spec
from .data.own import Clients, Samples, of_clients
from .federation import Fruitless, OnRound, Result
from .federation import simulate as simulate_scenario
from .models import draw_model
from .scenario import Scenario


def simulate(
    clients: Clients,
    model: nn.Module | Callable[..., nn.Module] | Spec = "mlp",
    guard: Spec = "auto",
    test: Samples | float | None = None,
    task: Spec | None = None,
    rounds: int = 20,
    lr: float = 0.1,
    epochs: int = 1,
    batch_size: int = 32,
    optimizer: str = "sgd",
    device: str = "cpu",
    seed: int = 0,
    name: str = "run",
    home: Path | str | None = None,
    on_round: OnRound | None = None,
) -> Result:
    """Train, guard and record a federation of these clients; the trained model is the result's ``model``.

    ``clients`` are the samples of each client, by name or in a list: a pair (features, labels) of tensors or arrays, or
    a data set of torch with such pairs as its items. ``model`` is a module, which itself stays as it is, a class or
    function that makes one from ``shape`` and ``classes``, or what a scenario has in its place; so are ``guard``, a
    preset or a table of its settings, and ``task``: by default regression where labels are floats, else classification.
    ``test`` is a test set, or the share of every client's samples that is held back for one, by default a fifth. The
    run is recorded in the workspace ``home``, by default $FEDWARDEN_HOME, else ./fedwarden-runs.
    """
    if not isinstance(guard, str | Mapping):
        table = '{"preset": "auto", "policy": "observe"}'
        raise ConfigError(f"guard is the name of a preset or a table as {table}; got {type(guard).__name__}")
    data = of_clients(clients, test, numbers=(task.get("name") if isinstance(task, Mapping) else task) == "regression")
    ready = isinstance(model, str | Mapping)
    scenario = parse(
        Scenario,
        {
            "name": name,
            "seed": seed,
            "rounds": rounds,
            "data": {"dataset": "memory"},
            "task": task or ("regression" if data.y_train.is_floating_point() else "classification"),
            "model": model if ready else getattr(model, "__name__", type(model).__name__),
            "guard": {"preset": guard} if isinstance(guard, str) else guard,
            "train": {"lr": lr, "epochs": epochs, "batch_size": batch_size, "optimizer": optimizer, "device": device},
        },
    )
    own = None
    if isinstance(model, nn.Module):
        own = deepcopy(model)
    elif not isinstance(model, str | Mapping):
        own = draw_model(model, f"python:{scenario.model.name}", {}, data.shape, data.classes, seed)
    result = simulate_scenario(scenario, Path(home) if home else None, on_round=on_round, data=data, model=own)
    if result.unchanged is not None:
        raise Fruitless.of(result)
    return result
