"""Clients with different speeds: which of them answer next, and which model each of them started from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..core.errors import ConfigError
from ..core.seeds import numpy_rng
from ..core.stats import Scores
from ..guard.window import Window, server_rate
from .scenario import AsynchronousConfig

JITTER = 0.1  # standard deviation of the log of a client's durations


def durations(speeds: float | Sequence[float], clients: int, rng: np.random.Generator) -> Scores:
    """How long each client takes for a reply: from 1 to the spread, in equal ratios and random order.

        T_i = spread^(r_i / (n - 1)),   r a random order of 0 to n - 1;   1 / speed_i if speeds are a list

    >>> durations(100.0, 3, np.random.default_rng(0)).round(6).tolist(), durations([1.0, 4.0], 2, None).tolist()
    ([100.0, 1.0, 10.0], [1.0, 0.25])
    """
    if not isinstance(speeds, float | int):
        return 1 / np.asarray(speeds, dtype=np.float64)
    return np.asarray(float(speeds) ** (rng.permutation(clients) / max(clients - 1, 1)), dtype=np.float64)


class Flights:
    """The clients at work: when each will answer, and which model it started from.

    A client that has answered waits until its buffer is complete, and is then sent the new model.
    """

    def __init__(self, config: AsynchronousConfig, clients: Sequence[str], seed: int) -> None:
        self.buffer, self.own_rate, self.seed = config.buffer, config.rate, seed
        if isinstance(config.speeds, tuple) and len(config.speeds) != len(clients):
            many = f"{len(config.speeds)} for {len(clients)} clients"
            raise ConfigError(f"asynchronous.speeds is a spread or a list with one speed for each client; got {many}")
        times = durations(config.speeds, len(clients), numpy_rng(seed, "speeds"))
        self.durations = dict(zip(clients, times.tolist(), strict=True))
        self.clock = 0.0
        self.rate = 1.0
        self.flying: dict[str, tuple[int, float]] = {}
        self.models: dict[int, Tensor] = {}
        self.began: dict[str, int] = {}
        self.window = Window()

    def send(self, version: int, params: Tensor, asked: Sequence[str], share: float) -> None:
        """Send the model after ``version`` rounds to free clients, so that a ``share`` of all is at work."""
        self.flying = {client: flight for client, flight in self.flying.items() if client in asked}
        free = [client for client in asked if client not in self.flying]
        many = max(1, round(share * len(asked)))
        self.rate = self.own_rate or server_rate(self.buffer, many)
        room = many - len(self.flying)
        picks = numpy_rng(self.seed, "participation", version + 1).permutation(len(free))[: max(room, 0)]
        for i in sorted(picks.tolist()):
            noise = numpy_rng(self.seed, "duration", version, free[i]).normal()
            self.flying[free[i]] = (version, self.clock + self.durations[free[i]] * float(np.exp(JITTER * noise)))
        used = {began for began, _ in self.flying.values()}
        self.models = {v: model for v, model in {**self.models, version: params}.items() if v in used}

    def land(self) -> list[str]:
        """The clients whose replies fill the next buffer, or all at work if there are fewer."""
        order = sorted(self.flying, key=lambda client: (self.flying[client][1], client))
        first = set(order[: self.window.size(self.buffer)])
        flights = {client: self.flying.pop(client) for client in self.durations if client in first}
        self.began = {client: version for client, (version, _) in flights.items()}
        self.clock = max((time for _, time in flights.values()), default=self.clock)
        return list(flights)

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, with the models that clients started from."""
        models = {str(version): model for version, model in self.models.items()}
        flying = {client: list(flight) for client, flight in self.flying.items()}
        return {"clock": self.clock, "flying": flying, "models": models, "window": self.window.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clock = state["clock"]
        self.flying = {client: (int(version), time) for client, (version, time) in state["flying"].items()}
        self.models = {int(version): model for version, model in state["models"].items()}
        self.window = Window.load(state["window"])
