"""The guard as an aggregator of APPFL: clients' models are judged before any of them enters the model."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from appfl.algorithm.aggregator import BaseAggregator
from appfl.misc.utils import create_instance_from_file, run_function_from_file
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn import Module

from ..core.errors import ConfigError
from ..core.registry import check_options, parameters
from ..core.types import Rejection
from ..core.words import short
from ..guard.arrays import attempt
from ..guard.contributions import Contribution, usable
from ..guard.params import Params
from ..guard.service import Log, Service, Settings

ENGINE = "appfl"
MODES = ("equal", "sample_size")
T = TypeVar("T")


@dataclass(frozen=True)
class Options(Settings):
    """The keys of ``aggregator_kwargs``: :class:`.Settings`, and the options of APPFL's own aggregators.

    APPFL passes no model to a custom aggregator, so repeat ``model_path``, ``model_name`` and ``model_kwargs`` of
    ``model_configs`` here. ``client_weights_mode`` is ``"equal"`` or ``"sample_size"``. APPFL sets the other keys.
    """

    client_weights_mode: str = "equal"
    model_path: str = ""
    model_name: str = ""
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_clients: int = 0
    optimize_memory: bool = True
    gradient_based: bool = False
    use_secure_agg: bool = False
    secure_agg_client_weights_mode: str = ""

    def __post_init__(self) -> None:
        if self.client_weights_mode not in MODES:
            raise ConfigError(f"client_weights_mode is 'equal' or 'sample_size'; got {self.client_weights_mode!r:.60}")
        if self.gradient_based:
            raise ConfigError("the guard takes whole models, not gradients: set send_gradient: false in train_configs")
        if self.use_secure_agg:
            raise ConfigError("the guard cannot judge masked updates: set use_secure_agg: false")

    def model(self) -> Module | None:
        """The initial model, if its file is given."""
        if not self.model_path:
            return None
        make = create_instance_from_file if self.model_name else run_function_from_file
        found: Module = make(self.model_path, self.model_name or None, **self.model_kwargs)
        return found


class GuardedAggregator(BaseAggregator):
    """Guards a synchronous federation of APPFL: ``aggregator: GuardedAggregator`` and a path to a file that imports it.

    In each round the warden admits, scores and judges clients by id, and combines the models that are kept. No error of
    a client or of the guard itself ends the run: it is recorded, and the model stays unchanged. Rounds are written to
    the ledger, with a checkpoint of guard and model from which a restarted server continues.
    """

    def __init__(
        self, model: Module | None = None, aggregator_configs: DictConfig | None = None, logger: Log | None = None
    ) -> None:
        """The arguments that APPFL passes; ``aggregator_configs`` are :class:`Options`."""
        given = OmegaConf.to_container(OmegaConf.create(aggregator_configs or {}), resolve=True)
        named = {str(name): value for name, value in given.items()} if isinstance(given, dict) else {}
        check_options("aggregator", type(self).__name__, Options, named, parameters(Options))
        self.options = options = Options(**named)
        self.model = model or options.model()
        log = logger or logging.getLogger("fedwarden.appfl")
        self.service = Service(
            ENGINE, options, options.guard("APPFL"), type(self).__name__, options.client_weights_mode,
            {"appfl": version("appfl")}, log, keeps_model=True,
        )  # fmt: skip
        self.client_sample_size: dict[Any, Any] = {}  # filled by APPFL
        self.tasks = SimpleQueue[Callable[[], None]]()
        Thread(target=self._work, daemon=True).start()
        atexit.register(self.close)

    def aggregate(self, /, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The new model from all clients' models, by client id; ``kwargs`` has metadata by name, then id."""
        if len(args) != 1 or not isinstance(args[0], Mapping):
            raise ConfigError(
                "GuardedAggregator judges rounds of all clients, and this scheduler hands over single models or stale "
                "ones: set scheduler: SyncScheduler"
            )
        chunks = kwargs.get("_chunk_idx", {})
        if len(chunks) == len(args[0]):  # one client alone may have claimed it
            raise ConfigError("GuardedAggregator judges whole models, not chunks: set use_model_chunking: false")
        came, refused = list[Contribution](), list[Rejection]()
        for client, params in sorted(args[0].items(), key=lambda item: str(item[0])):  # in one fixed order
            name = str(client)
            told = {key: values[client] for key, values in kwargs.items() if client in values}
            found = attempt(short(name), partial(self._read, name, client, params, told))
            if isinstance(found, Rejection):
                refused.append(found)
            else:
                came.append(found)
        answer = self._alone(lambda: self.service.round(came, refused, self._shown, lambda: ENGINE))
        return dict(answer.params)

    def get_parameters(self, /, **kwargs: Any) -> dict[str, Tensor]:
        """The model that clients are sent: the last one, also of a resumed run, or the initial one."""
        if self.model is not None:
            form = self.service.form([], self.model.state_dict())
            self._alone(lambda: self.service.begin(form, lambda: ENGINE))
        (params,) = self._shown()
        if params is None:
            raise ConfigError(
                "the initial model is not known: set model_path and model_name in aggregator_kwargs, "
                "as in model_configs"
            )
        return {name: value.detach().clone() for name, value in params.items()}

    def close(self, state: str = "") -> None:
        """End the run's record, also at exit: as done, or as interrupted after an uncaught error or Ctrl-C."""
        atexit.unregister(self.close)
        self._alone(lambda: self.service.close(state or ("interrupted" if "last_value" in vars(sys) else "done")))

    def _read(self, name: str, client: Any, params: Any, told: Mapping[str, Any]) -> Contribution:
        weighed = self.options.client_weights_mode == "sample_size"
        count = self.client_sample_size.get(client) if weighed else None
        return Contribution.of(usable(name), True, params, count, told, self.service.listed)

    def _shown(self) -> tuple[Params | None]:
        return (self.service.last or (None if self.model is None else self.model.state_dict()),)

    def _alone(self, do: Callable[[], T]) -> T:
        """The result of a function, run in the one thread that may use the ledger; APPFL calls from several."""
        future = Future[T]()

        def run() -> None:
            try:
                future.set_result(do())
            except BaseException as error:
                future.set_exception(error)

        self.tasks.put(run)
        return future.result()

    def _work(self) -> None:
        while True:
            self.tasks.get()()
