"""The guard as an aggregator of NVIDIA FLARE: sites' models are judged before any of them enters the model."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import nvflare
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.types import Rejection, RoundRecord
from ..core.words import reason, short
from ..guard.arrays import BUFFERS, attempt
from ..guard.contributions import Contribution
from ..guard.params import Params
from ..guard.service import Service, Settings
from ..guard.warden import Warden
from .inbox import UNKNOWN, contribution, site_of

LOG = logging.getLogger("fedwarden.nvflare")  # NVIDIA FLARE shows it beside its own lines
ENGINE = "nvflare"
STEPS = "NUM_STEPS_CURRENT_ROUND"  # what NVIDIA FLARE's FedAvg weighs by
WAIT = 600.0  # seconds, as long as NVIDIA FLARE waits for a sign of life of a site


class GuardedAggregator(ModelAggregator):
    """Guards FedAvg in NVIDIA FLARE: ``FedAvgRecipe(..., aggregator=GuardedAggregator())``.

    Each round the warden admits, scores and decides by site name, and combines what remains. No error of a site or of
    the guard itself ends the job: it is noted, and the model stays as it is. Rounds go to the ledger, and a job that
    is started again can go on with the guard's state.
    """

    def __init__(
        self,
        warden: str | Warden = "auto",
        options: Mapping[str, Any] | None = None,
        aggregator: str | Mapping[str, Any] | None = None,
        shares: Mapping[str, float] | None = None,
        weigh_by: str = STEPS,
        run_name: str = "",
        home: str | None = None,
        resume: bool = False,
        buffers: Sequence[str] = BUFFERS,
        sinks: Sequence[Any] = (),
        wait: float | None = WAIT,
        adapters: str | Mapping[str, Any] | None = None,
        personal: str | Sequence[str] = (),
        metrics: str | Sequence[str] | None = None,
    ) -> None:
        """Plain values, since a job carries them as JSON; a warden object serves controllers in one's own process.

        ``warden`` is a preset's name and ``options`` are its own; ``aggregator`` combines in place of the preset's.
        ``shares`` names sites that may hold more of the weight than others, such as one that truly has half of the
        data. ``weigh_by`` is the entry of a model's ``meta`` that it is weighed by. ``run_name`` (by default the
        job's) and ``home`` say where the run is recorded; ``resume`` continues the latest unfinished run of that name
        and experiment, if there is one. Parameters whose names end in one of ``buffers`` never enter a distance.
        ``sinks`` are names, tables with options or sinks that every round is sent to; see docs/sinks.md. ``wait`` is
        for how many seconds, or as long again as they took if that is longer, a round waits for the other sites once
        more than half have answered; None waits for ever, unless the controller has a timeout. The others are those of
        :class:`.Settings`.
        """
        super().__init__()
        if warden == "":
            raise ConfigError("a job carries the name of a preset, such as warden='auto', and no warden object")
        # NVIDIA FLARE makes a job of these attributes: they are the arguments, under the same names
        self.warden = warden if isinstance(warden, str) else ""
        self.options = None if options is None else dict(options)
        self.aggregator = dict(aggregator) if isinstance(aggregator, Mapping) else aggregator
        self.shares = None if shares is None else dict(shares)
        self.weigh_by, self.run_name, self.home, self.resume = weigh_by, run_name, home, resume
        self.buffers, self.sinks, self.wait, self.personal = tuple(buffers), tuple(sinks), wait, personal
        self.adapters = dict(adapters) if isinstance(adapters, Mapping) else adapters
        self.metrics = metrics if metrics is None or isinstance(metrics, str) else list(metrics)

        settings = Settings(
            warden, self.options, self.aggregator, self.shares, run_name, home, resume, self.buffers, sinks,
            self.adapters, personal, self.metrics,
        )  # fmt: skip
        guard, software = settings.guard("NVIDIA FLARE"), {"nvflare": nvflare.__version__}
        self.service = Service(ENGINE, settings, guard, type(self).__name__, weigh_by, software, LOG)
        self.lock = Lock()  # models may come in several threads
        self.came: dict[str, Contribution] = {}
        self.refused: list[Rejection] = []
        self.sites: frozenset[str] = frozenset()  # that the round asks, as far as NVIDIA FLARE tells
        self.sent: Params | None = None  # the model of this round, as an event shows it
        self.asked = math.nan  # when the sites of this round were, on this machine's clock
        self.broken = False

    @property
    def record(self) -> RoundRecord | None:
        """The last round."""
        return self.service.record

    def accept_model(self, model: FLModel) -> None:
        """Take one site's model; what cannot be read is noted, and never an error."""
        self._take(model)

    def aggregate_model(self) -> FLModel:
        """The new model, of the type that the sites sent: made by the guard, or the last one."""
        with self.lock:
            came = [self.came[site] for site in sorted(self.came)]  # who answers first changes no bit of the model
            refused = list(self.refused)
        silent = sorted(self.sites - self.came.keys() - {rejection.client_id for rejection in refused})
        refused += [Rejection(site, Note.of("no_answer")) for site in silent]
        made = self.service.round(came, refused, self._shown, self._job_name)
        # no word of the guard's goes into the model's meta or metrics: the server sends these on to all sites
        kind, metrics = ParamsType.FULL if made.whole else ParamsType.DIFF, made.metrics
        return FLModel(params_type=kind, params={**made.params}, metrics=None if metrics is None else {**metrics})

    def reset_stats(self) -> None:
        """Forget the models of a round; what the guard remembers of the sites stays."""
        with self.lock:
            self.came, self.refused, self.sent, self.sites = {}, [], None, frozenset()

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take one site's model in a workflow that passes shareables; whether it can be read."""
        self.fl_ctx = fl_ctx
        site = UNKNOWN
        try:
            site = str(shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, default=UNKNOWN))
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
            model.meta["client_name"] = site  # the site itself may have written another one
        except Exception as error:
            fault = Note.of("unreadable", error=type(error).__name__, words=reason(error))
            return self._refuse(Rejection(short(site), fault))
        return self._take(model)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow the job: the model that is sent to the sites, and how the job ends."""
        super().handle_event(event_type, fl_ctx)
        try:
            if event_type == AppEventType.BEFORE_TRAIN_TASK:
                self.asked = time.monotonic()
                self._see(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE))
            elif event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
                self._bound(fl_ctx)
            elif event_type == EventType.FATAL_SYSTEM_ERROR:
                self.broken = True
            elif event_type == EventType.END_RUN:
                signal = fl_ctx.get_run_abort_signal()
                stopped = signal is not None and signal.triggered
                self.close("failed" if self.broken else "interrupted" if stopped else "done")
        except ConfigError as error:
            self.system_panic(f"fedwarden: {error}", fl_ctx)
        except Exception as error:
            self.service.warn(f"{event_type} could not be followed: {reason(error)}")

    def close(self, state: str = "done") -> None:
        """End the run's record; the end of a job does it."""
        self.service.close(state, "a fatal error of the job; its log says which" if state == "failed" else "")

    def _take(self, model: Any) -> bool:
        site = attempt(UNKNOWN, lambda: site_of(model))
        if isinstance(site, Rejection):
            return self._refuse(site)
        found = attempt(site, lambda: contribution(site, model, self.weigh_by, self.service.listed))
        if isinstance(found, Rejection):
            return self._refuse(found)
        with self.lock:
            if site not in self.came:
                self.came[site] = replace(found, seconds=time.monotonic() - self.asked)
                return True
        return self._refuse(Rejection(site, Note.of("answered_twice")))

    def _refuse(self, rejection: Rejection) -> bool:
        with self.lock:
            self.refused.append(rejection)
        return False

    def _see(self, shareable: Any) -> None:
        """Keep hold of the model that the sites are sent."""
        if not isinstance(shareable, Shareable):
            return
        dxo, rounds = from_shareable(shareable), shareable.get_header(AppConstants.NUM_ROUNDS)
        self.service.planned = rounds if isinstance(rounds, int) else self.service.planned
        if dxo.data_kind == DataKind.WEIGHTS and dxo.data:
            self.sent = dict(dxo.data)
            if not self.service.begun:
                self.service.form([], self.sent)  # what the model does not fit is refused before any site trains

    def _bound(self, fl_ctx: FLContext) -> None:
        """Learn which sites the round asks, and let NVIDIA FLARE end it some time after most of them have answered."""
        runner, number = fl_ctx.get_prop(FLContextKey.RUNNER), fl_ctx.get_prop(FLContextKey.TASK_ID)
        found = runner and runner.current_wf.controller.communicator.process_task_check(number, fl_ctx)
        if not found:
            return
        task, self.sites = found.task, frozenset(found.task.targets)
        answered = self.came.keys() | {rejection.client_id for rejection in self.refused}
        if self.wait is not None and not task.timeout and 2 * len(answered & self.sites) > len(self.sites):
            passed = time.time() - task.schedule_time
            task.timeout = passed + max(self.wait, passed)

    def _shown(self) -> tuple[Any, ...]:
        """Where the model that the sites were sent may be known from."""
        held = None if self.fl_ctx is None else self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        return self.sent, held.get(ModelLearnableKey.WEIGHTS) if isinstance(held, Mapping) else None

    def _job_name(self) -> str:
        meta = None if self.fl_ctx is None else self.fl_ctx.get_prop(FLContextKey.JOB_META)
        name = meta.get("name") if isinstance(meta, Mapping) else None
        return name if isinstance(name, str) and name else ENGINE
