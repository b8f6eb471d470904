"""Sites of NVIDIA FLARE as functions: a model, honest answers to it, and answers of every bad kind."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg

from fedwarden.nvflare import GuardedAggregator

N, BAD = 8, "site-5"
SITES = [f"site-{i}" for i in range(1, N + 1)]
STEPS = "NUM_STEPS_CURRENT_ROUND"
Params = dict[str, Any]
Change = Callable[[Params], Any]
Site = Callable[[FLModel], list[FLModel]]


def model() -> dict[str, NDArray[Any]]:
    """Three parameters: a matrix, a vector and a scalar."""
    rng = np.random.default_rng(0)
    shapes = {"fc.weight": (4, 3), "fc.bias": (4,), "scale": ()}
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}


def trained(site: str, params: Mapping[str, Any], round: int = 1) -> Params:
    """Honest training: every site takes the same step, with noise of its own."""
    rng = np.random.default_rng([int(site.partition("-")[2]), round])
    return {k: np.asarray(v - 0.1 + 0.02 * rng.normal(size=np.shape(v)), np.float32) for k, v in params.items()}


def sent(site: str, params: Mapping[str, Any], kind: ParamsType, round: int = 1) -> Params:
    """What an honest site sends: its whole model, or the difference."""
    made = trained(site, params, round)
    return made if kind is ParamsType.FULL else {k: np.asarray(made[k] - v) for k, v in params.items()}


def answer(site: str, params: Any, kind: ParamsType = ParamsType.FULL, steps: Any = 10, metrics: Any = None) -> FLModel:
    """A site's model as the server hands it to an aggregator."""
    meta = {"client_name": site, **({} if steps is None else {STEPS: steps})}
    return FLModel(params_type=kind, params=params, metrics=metrics, meta=meta)


class Broken:
    """A reference to a file on disk that is gone."""

    def materialize(self) -> Any:
        raise FileNotFoundError("no such file: chunk_0.safetensors")


class Trap:
    """An object that fails at everything that is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("boom\x1b[2J" * 99)


def _with(name: str, change: Callable[[Any], Any]) -> Change:
    return lambda params: {**params, name: change(params[name])}


# what one bad site sends in place of its parameters
BAD_PARAMS: dict[str, Change] = {
    "nan": _with("fc.bias", lambda a: a * np.nan),
    "other shape": _with("fc.weight", lambda a: a.T),
    "shape (1,)": _with("fc.bias", lambda a: a[:1]),
    "extra array": lambda params: {**params, "more": np.ones(3, np.float32)},
    "missing array": lambda params: {k: v for k, v in params.items() if k != "scale"},
    "a name that is no text": lambda params: {**params, 7: np.ones(3, np.float32)},
    "empty": lambda params: {},
    "no table": lambda params: list(params.values()),
    "integers": _with("fc.bias", lambda a: np.full(4, 10**6)),
    "objects": _with("fc.bias", lambda a: np.array([None] * 4)),
    "a list": _with("fc.bias", lambda a: a.tolist()),
    "none": _with("fc.bias", lambda a: None),
    "too large a float": _with("fc.bias", lambda a: np.full(4, 1e300)),
    "huge": _with("fc.bias", lambda a: np.full(4, 1e30, np.float32)),
    "a sparse tensor": _with("fc.bias", lambda a: torch.from_numpy(a.copy()).to_sparse()),
    "a file that is gone": _with("fc.bias", lambda a: Broken()),
    "a trap": _with("fc.bias", lambda a: Trap()),
}
BAD_STEPS: dict[str, Any] = {
    "negative": -1e9,
    "zero": 0,
    "nan": float("nan"),
    "inf": float("inf"),
    "a text": "many",
    "a list": [10, 10],
    "too many": 10**400,
}


class LocalFedAvg(FedAvg):  # type: ignore[misc]
    """NVIDIA FLARE's own controller without a network: each site is a function from a model to its answers."""

    def __init__(self, sites: Mapping[str, Site], aggregator: GuardedAggregator, params: Params, rounds: int) -> None:
        super().__init__(
            num_clients=len(sites), num_rounds=rounds, persistor_id="", model=dict(params), aggregator=aggregator
        )
        self.sites, self.seen = sites, list[FLModel]()
        self.fl_ctx = context()
        self.abort_signal = Signal()

    def event(self, event_type: str) -> None:
        self.aggregator.handle_event(event_type, self.fl_ctx)

    def fire_event_with_data(self, event_type: str, fl_ctx: FLContext, key: str, data: Any) -> None:
        fl_ctx.set_prop(key, data, private=True, sticky=False)
        self.event(event_type)

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        return list(self.sites)

    def get_num_standing_tasks(self) -> int:
        return 0

    def save_model(self, model: FLModel) -> None:
        self.model = model

    def send_model(self, task_name: str, targets: list[str], data: FLModel, callback: Any) -> None:
        shareable = FLModelUtils.to_shareable(data)
        for site in targets:
            self.fire_event_with_data(
                AppEventType.BEFORE_TRAIN_TASK, self.fl_ctx, AppConstants.TRAIN_SHAREABLE, shareable
            )
            for reply in self.sites[site](FLModelUtils.from_shareable(shareable)):
                reply.meta["client_name"] = site
                callback(reply)


def context() -> FLContext:
    manager = FLContextManager(None, "server", "job-1", {}, {})
    return manager.new_context()


def honest(site: str, kind: ParamsType = ParamsType.FULL, metrics: Any = None) -> Site:
    return lambda asked: [answer(site, sent(site, asked.params, kind, asked.current_round + 1), kind, metrics=metrics)]


def reversing(site: str, kind: ParamsType = ParamsType.FULL) -> Site:
    """An attacker: it takes the honest step backwards, three times as far."""

    def reply(asked: FLModel) -> list[FLModel]:
        base, made = asked.params, trained(site, asked.params, asked.current_round + 1)
        moved = {k: np.asarray(3 * (base[k] - v), np.float32) for k, v in made.items()}
        whole = {k: base[k] + v for k, v in moved.items()}
        return [answer(site, whole if kind is ParamsType.FULL else moved, kind)]

    return reply
