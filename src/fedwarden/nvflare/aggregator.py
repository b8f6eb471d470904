"""The guard as an aggregator of NVIDIA FLARE: sites' models are judged before any of them enters the model."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
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
from ..core.registry import component
from ..core.types import NO_WORD, Rejection, RoundRecord, Word
from ..core.words import printable, reason, short
from ..guard.adapters import Adapters
from ..guard.arrays import BUFFERS, Unfit, attempt, staying
from ..guard.journal import Journal, experiment, kept
from ..guard.telling import lines, tally
from ..guard.warden import Warden
from .inbox import UNKNOWN, Contribution, Made, contribution, form_of, idle_round, play, site_of, usual_kind
from .params import Form, Params, read_all

LOG = logging.getLogger("fedwarden.nvflare")  # NVIDIA FLARE shows it beside its own lines
ENGINE = "nvflare"
PARTS = ("warden",)  # of a checkpoint
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
        metrics: Sequence[str] | None = None,
    ) -> None:
        """Plain values, since a job carries them as JSON; a warden object serves controllers in one's own process.

        ``warden`` is a preset's name and ``options`` are its own; ``aggregator`` combines in place of the preset's.
        ``shares`` names sites that may hold more of the weight than others, such as one that truly has half of the
        data. ``weigh_by`` is the entry of a model's ``meta`` that it is weighed by. ``run_name`` (by default the
        job's) and ``home`` say where the run is recorded; ``resume`` continues the latest unfinished run of that name
        and experiment, if there is one. Parameters whose names end in one of ``buffers`` never enter a distance.
        ``sinks`` are names, tables with options or sinks that every round is sent to; see docs/sinks.md. ``wait`` is
        for how many seconds, or as long again as they took if that is longer, a round waits for the other sites once
        more than half have answered; None waits for ever, unless the controller has a timeout.
        ``adapters``, as "lora" or a table, says that the model has low-rank adapters: their products are judged and
        combined. ``personal`` are names of parameters, or patterns as "head.*", that stay at the sites: neither judged
        nor combined, they keep the server's values, whatever a site sends. ``metrics`` lists the metrics of sites that
        are averaged and recorded, all by default.
        """
        super().__init__()
        if warden == "":
            raise ConfigError("a job carries the name of a preset, such as warden='auto', and no warden object")
        if options and not isinstance(warden, str):
            raise ConfigError("options are those of a preset; a warden object has its own already")
        # NVIDIA FLARE makes a job of these attributes: they are the arguments, under the same names
        self.warden = warden if isinstance(warden, str) else ""
        self.options = None if options is None else dict(options)
        self.aggregator = dict(aggregator) if isinstance(aggregator, Mapping) else aggregator
        self.shares = None if shares is None else dict(shares)
        self.weigh_by, self.run_name, self.home, self.resume = weigh_by, run_name, home, resume
        self.buffers, self.sinks, self.wait, self.personal = tuple(buffers), tuple(sinks), wait, personal
        self.adapters = dict(adapters) if isinstance(adapters, Mapping) else adapters
        self.metrics = None if metrics is None else list(metrics)

        self.guard = copy(Warden.preset(warden, **(options or {})) if isinstance(warden, str) else warden)
        if self.guard.guard.paired:
            raise ConfigError(
                "paired sends some sites a model of their own, which an aggregator of NVIDIA FLARE cannot: leave it out"
            )
        if shares:
            self.guard.admission = replace(self.guard.admission, shares={**self.guard.admission.shares, **shares})
        if aggregator is not None:
            self.guard.aggregator = component("aggregator", aggregator)
            self.guard.carried = self.guard.aggregator.init()
        self.low_rank = Adapters.of(adapters)
        if self.low_rank is not None:
            self.guard = self.guard.of_products()
        self.lock = Lock()  # models may come in several threads
        self.came: dict[str, Contribution] = {}
        self.refused: list[Rejection] = []
        self.sites: frozenset[str] = frozenset()  # that the round asks, as far as NVIDIA FLARE tells
        self.sent: Params | None = None  # the model of this round, as an event shows it
        self.last: Params | None = None  # the last one that was made here
        self.kind: ParamsType | None = None
        self.planned = 0  # rounds, as far as the server tells
        self.asked = math.nan  # when the sites of this round were, on this machine's clock
        self.journal: Journal | None = None
        self.record: RoundRecord | None = None
        self.word: Word | None = None  # the operator's, once it was read for this round
        self.heard = NO_WORD  # and what of that holds in the next one, if it cannot be read then
        self.done = 0
        self.begun = self.broken = False

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
        kind, sent = usual_kind([c.kind for c in came], self.kind), None
        try:
            sent = self._sent()
            made = self._play(came, refused, kind, sent)
        except Exception as error:  # it would abort the job
            self._failed(came, refused, error)
            return _unchanged(kind, sent)
        if made.params is None:
            return _unchanged(kind, sent)
        if kind is ParamsType.FULL:
            self.last = made.params
        # no word of the guard's goes into the model's meta or metrics: the server sends these on to all sites
        return FLModel(params_type=kind, params=made.params, metrics=None if made.metrics is None else {**made.metrics})

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
        except Exception as error:
            self._warn(f"{event_type} could not be followed: {reason(error)}")

    def close(self, state: str = "done") -> None:
        """End the run's record; the end of a job does it."""
        journal, self.journal = self.journal, None
        if journal is None:
            return
        record = self.record
        told = {} if record is None else {"rounds": record.round, "excluded": list(record.excluded)}
        error = "a fatal error of the job; its log says which" if state == "failed" else ""
        for line in journal.close(state, told, error):
            LOG.info("fedwarden: %s", line)

    def _take(self, model: Any) -> bool:
        site = attempt(UNKNOWN, lambda: site_of(model))
        if isinstance(site, Rejection):
            return self._refuse(site)
        found = attempt(site, lambda: contribution(site, model, self.weigh_by, self.metrics))
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
        self.planned = rounds if isinstance(rounds, int) else self.planned
        if dxo.data_kind == DataKind.WEIGHTS and dxo.data:
            self.sent = dict(dxo.data)

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

    def _sent(self) -> Params | None:
        """The model that the sites were sent, wherever it is known from."""
        held = None if self.fl_ctx is None else self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        weights = held.get(ModelLearnableKey.WEIGHTS) if isinstance(held, Mapping) else None
        for params in (self.sent, weights, self.last):
            if params:
                with suppress(Unfit):  # a model that is no table of arrays is not known
                    read_all(params)
                    return dict(params)
        return None

    def _play(
        self, came: Sequence[Contribution], refused: Sequence[Rejection], kind: ParamsType, sent: Params | None
    ) -> Made:
        self.kind = kind
        if not came and sent is None:
            note = Note.of("no_usable_reply", rejected=len(refused))
            return Made(self._keep(idle_round(self.done + 1, came, refused, note)))
        stay = staying(sent or {name for each in came for name in each.arrays}, self.personal)
        came = [each.without(stay) for each in came]
        base = None if sent is None else {name: value for name, value in sent.items() if name not in stay}
        form = form_of(came, base, self.buffers)
        self._begin(form)
        known = self.guard.excluded
        made = play(self.guard, came, refused, form, kind, sent, self.done + 1, self._hear(), self.low_rank)
        self._keep(made.record, known)
        return made

    def _hear(self) -> Word:
        """The operator's word, read once a round, as the sites' models are about to be judged.

        Not earlier: events come in threads of NVIDIA FLARE's own, and the ledger is used by one thread alone.
        """
        if self.word is None and self.journal is not None:
            there = {*self.came, *self.sites, *(rejection.client_id for rejection in self.refused)}
            try:
                self.word = self.journal.recorder.word(self.done + 1, there)
            except Exception as error:
                self.word = self.heard
                self._warn(f"the operator's word cannot be read for round {self.done + 1}: {reason(error)}")
        return self.word or NO_WORD

    def _failed(self, came: Sequence[Contribution], refused: Sequence[Rejection], error: Exception) -> None:
        """Note an error of the guard's own; nothing that goes wrong here matters more than the job."""
        note = Note.of("guard_failed", replies=len(came), error=reason(error))
        LOG.error("fedwarden: %s", note, exc_info=error)
        with suppress(Exception):
            self._keep(idle_round(self.done + 1, came, refused, note))

    def _begin(self, form: Form) -> None:
        """Start the run's record, or continue it; a run that cannot be recorded is guarded all the same."""
        if self.begun:
            return
        self.begun = True
        for resume in (True, False) if self.resume else (False,):
            try:
                self.journal = journal = self._journal(form, resume)
                if journal.passed_over:
                    self._warn(journal.passed_over)
                self.guard.keep_secret(journal.secret)
                if journal.state is not None:
                    self.guard.load_state_dict(journal.state["warden"])
                    self.done = int(journal.state["round"])
                    LOG.info("fedwarden: run %d continues after round %d", journal.recorder.run, self.done)
                return
            except Exception as error:
                self.close("failed")
                what = "the last run cannot be continued" if resume else "this run is not recorded"
                self._warn(f"{what}: {reason(error)}")

    def _journal(self, form: Form, resume: bool) -> Journal:
        config = {"strategy": type(self).__name__, "warden": repr(self.guard), "weigh_by": self.weigh_by}
        parts = [type(self).__name__, *([] if self.low_rank is None else [str(self.low_rank)])]
        same = experiment(parts, self.guard, form.slots, form.buffers)
        more = {"rounds": self.planned} if self.planned and not resume else {}  # a job knows its own rounds alone
        options = {"options": self.options} if self.options else {}
        guard = {"guard": {"preset": self.warden, **options}} if self.warden else {}
        recorded = {**config, **more, **guard, **kept(self.guard), "experiment": same}
        home, software = None if self.home is None else Path(self.home), {"nvflare": nvflare.__version__}
        name = self.run_name or self._job_name()
        return Journal(home, name, ENGINE, recorded, PARTS, self._warn, resume, self.sinks, software)

    def _job_name(self) -> str:
        meta = None if self.fl_ctx is None else self.fl_ctx.get_prop(FLContextKey.JOB_META)
        name = meta.get("name") if isinstance(meta, Mapping) else None
        return name if isinstance(name, str) and name else ENGINE

    def _keep(self, record: RoundRecord, known: Sequence[str] = ()) -> RoundRecord:
        """Log a round, remember it, and write it to the ledger; a ledger that cannot be written ends nothing."""
        word = self._hear()
        if not record.watches:  # nobody was judged: who was out stays out, but for what the operator says
            self.guard.heed(word)
            record = replace(record, excluded=self.guard.excluded, suspended=self.guard.memory.suspended)
            known = self.guard.excluded
        record = replace(record, notes=(*self._said(record.round), *record.notes))
        self.word, self.heard = None, replace(word, readmitted=frozenset())
        for line in lines(record, known):
            self._warn(line)
        self.done = record.round
        self.record = record = replace(record, metrics={**record.metrics, **tally(record)})
        if self.journal is not None:
            try:
                self.journal.recorder.commit(record, lambda: {"round": record.round, "warden": self.guard.remembered()})
                self.journal.recorder.send()
            except Exception as error:
                self._warn(f"round {record.round} is not recorded: {reason(error)}")
        return self.record

    def _said(self, round: int) -> Sequence[Note]:
        with suppress(Exception):
            return () if self.journal is None else self.journal.recorder.notes(round)
        return ()

    def _warn(self, text: str) -> None:
        """One line in the server's log; names and words of sites cannot steer the terminal that shows it."""
        LOG.warning("fedwarden: %s", printable(text))


def _unchanged(kind: ParamsType, sent: Params | None) -> FLModel:
    """The model as it is; where it is not known, an empty difference, which changes no model."""
    if sent is None:
        return FLModel(params_type=ParamsType.DIFF, params={})
    if kind is ParamsType.FULL:
        return FLModel(params_type=kind, params=dict(sent))
    return FLModel(params_type=kind, params=Form.of(sent).nothing())
