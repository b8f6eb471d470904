"""A guarded server that is handed whole rounds: each is judged, combined and recorded, and no error ends its run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_exception
from typing import Any, Protocol

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.registry import component
from ..core.reported import WORSE
from ..core.types import NO_WORD, Rejection, RoundRecord, Word
from ..core.words import printable, reason
from .adapters import Adapters
from .arrays import BUFFERS, Unfit, staying
from .contributions import Contribution, Made, form_of, idle_round, play, usual_kind
from .journal import Journal, experiment, kept
from .params import Form, Params, read_all
from .telling import lines, tally
from .warden import Warden

PARTS = ("warden",)  # of a checkpoint


class Log(Protocol):
    """The log of an engine."""

    def info(self, text: str, /) -> object: ...
    def warning(self, text: str, /) -> object: ...
    def error(self, text: str, /) -> object: ...


@dataclass(frozen=True)
class Settings:
    """How rounds are guarded and recorded: what engines take as options.

    ``warden`` is a preset's name and ``options`` are its own, or it is a warden; ``aggregator`` combines in place of
    the preset's. ``shares`` names clients that may hold more of the weight than others, such as one that truly has half
    of the data. ``run_name`` and ``home`` say where the run is recorded; ``resume`` continues the latest unfinished run
    of that name and experiment, if there is one. Parameters whose names end in one of ``buffers`` never enter a
    distance. ``sinks`` are names, tables with options or sinks that every round is sent to; see docs/sinks.md.
    ``adapters``, as "lora" or a table, says that the model has low-rank adapters: their products are judged and
    combined. ``personal`` are names of parameters, or patterns as "head.*", that stay at the clients: neither judged
    nor combined, they keep the server's values, whatever a client sends. ``metrics`` lists the metrics of clients that
    are averaged and recorded, by default all.
    """

    warden: str | Warden = "auto"
    options: Mapping[str, Any] | None = None
    aggregator: str | Mapping[str, Any] | None = None
    shares: Mapping[str, float] | None = None
    run_name: str = ""
    home: str | None = None
    resume: bool = False
    buffers: Sequence[str] = BUFFERS
    sinks: Sequence[Any] = ()
    adapters: str | Mapping[str, Any] | None = None
    personal: str | Sequence[str] = ()
    metrics: str | Sequence[str] | None = None

    def guard(self, engine: str) -> Warden:
        """The warden that they ask for; ``engine`` is how a message names the engine."""
        if self.options and not isinstance(self.warden, str):
            raise ConfigError("options are those of a preset; a warden object has its own already")
        chosen, options = self.warden, self.options or {}
        guard = copy(Warden.preset(chosen, **options) if isinstance(chosen, str) else chosen)
        if guard.guard.paired:
            raise ConfigError(
                f"paired sends some clients a model of their own, which an aggregator of {engine} cannot: leave it out"
            )
        if self.shares:
            guard.admission = replace(guard.admission, shares={**guard.admission.shares, **self.shares})
        if self.aggregator is not None:
            guard.aggregator = component("aggregator", self.aggregator)
            guard.carried = guard.aggregator.init()
        return guard if self.adapters is None else guard.of_products()

    def listed(self, guard: Warden) -> frozenset[str] | None:
        """The metrics of clients that are read: those on the list and what jurors report; None: all."""
        if self.metrics is None:
            return None
        own = {self.metrics} if isinstance(self.metrics, str) else set(self.metrics)
        return frozenset(own | ({WORSE.removeprefix("train/")} if guard.guard.jurors else set()))


@dataclass(frozen=True, eq=False)
class Answer:
    """What a round made: a whole model or a difference, and the mean metrics. An empty difference changes no model."""

    whole: bool
    params: Mapping[str, Any]
    metrics: Mapping[str, float] | None = None


class Service:
    """A guard, the run that it records, and what both remember between the rounds of one server."""

    def __init__(
        self,
        engine: str,
        settings: Settings,
        guard: Warden,
        strategy: str,
        weigh_by: str,
        software: Mapping[str, str],
        log: Log,
        keeps_model: bool = False,
    ) -> None:
        """``software`` are versions that the run records, and ``weigh_by`` names what clients are weighed by.

        With ``keeps_model`` checkpoints have the model too, for an engine that keeps none.
        """
        self.keeps_model = keeps_model
        self.engine, self.settings, self.guard, self.log = engine, settings, guard, log
        self.strategy, self.weigh_by, self.software = strategy, weigh_by, software
        self.low_rank, self.listed = Adapters.of(settings.adapters), settings.listed(guard)
        self.there: frozenset[str] = frozenset()  # the clients of this round
        self.planned = 0  # rounds, as far as the server tells
        self.last: Params | None = None  # the last model that was made here
        self.whole: bool | None = None  # what clients sent last
        self.journal: Journal | None = None
        self.record: RoundRecord | None = None
        self.word: Word | None = None  # the operator's, once it was read for this round
        self.heard = NO_WORD  # and what of that holds in the next one, if it cannot be read then
        self.done = 0
        self.begun = False

    def round(
        self,
        came: Sequence[Contribution],
        refused: Sequence[Rejection],
        shown: Callable[[], Iterable[Any]],
        name: Callable[[], str] = str,
    ) -> Answer:
        """The new model: made by the guard, or the last one.

        ``shown`` gives whatever may be the model that the clients were sent, and ``name`` a run's where none was given.
        """
        whole, sent = usual_kind([c.whole for c in came], self.whole), None
        try:
            sent = self._sent(shown())
            made = self._play(came, refused, whole, sent, name)
        except Exception as error:  # it would abort the job
            self._failed(came, refused, error)
            return _unchanged(whole, sent)
        if made.params is None:
            return _unchanged(whole, sent)
        return Answer(whole, made.params, made.metrics)

    def close(self, state: str = "done", error: str = "") -> None:
        """End the run's record; a second end changes nothing."""
        journal, self.journal = self.journal, None
        if journal is None:
            return
        record = self.record
        told = {} if record is None else {"rounds": record.round, "excluded": list(record.excluded)}
        for line in journal.close(state, told, error):
            self.log.info(f"fedwarden: {line}")

    def warn(self, text: str) -> None:
        """One line in the server's log; names and words of clients cannot steer the terminal that shows it."""
        self.log.warning(f"fedwarden: {printable(text)}")

    def _sent(self, shown: Iterable[Any]) -> Params | None:
        """The model that the clients were sent, wherever it is known from."""
        for params in (*shown, self.last):
            if params:
                with suppress(Unfit):  # a model that is no table of arrays is not known
                    read_all(params)
                    return dict(params)
        return None

    def _play(
        self,
        came: Sequence[Contribution],
        refused: Sequence[Rejection],
        whole: bool,
        sent: Params | None,
        name: Callable[[], str],
    ) -> Made:
        self.whole = whole
        self.there = frozenset([*(c.client for c in came), *(rejection.client_id for rejection in refused)])
        if not came and sent is None:
            note = Note.of("no_usable_reply", rejected=len(refused))
            return Made(self._keep(idle_round(self.done + 1, came, refused, note)))
        came, base = self._shared(came, sent)
        form = form_of(came, base, self.settings.buffers)
        self.begin(form, name)
        known = self.guard.excluded
        made = play(self.guard, came, refused, form, whole, sent, self.done + 1, self._hear(), self.low_rank)
        if whole and made.params is not None:
            self.last = made.params
        self._keep(made.record, known)
        return made

    def _hear(self) -> Word:
        """The operator's word, read once a round, as the clients' models are about to be judged.

        Not earlier: events may come in threads of the engine's own, and the ledger is used by one thread alone.
        """
        if self.word is None and self.journal is not None:
            try:
                self.word = self.journal.recorder.word(self.done + 1, self.there)
            except Exception as error:
                self.word = self.heard
                self.warn(f"the operator's word cannot be read for round {self.done + 1}: {reason(error)}")
        return self.word or NO_WORD

    def _failed(self, came: Sequence[Contribution], refused: Sequence[Rejection], error: Exception) -> None:
        """Note an error of the guard's own; nothing that goes wrong here matters more than the job."""
        note = Note.of("guard_failed", replies=len(came), error=reason(error))
        self.log.error(f"fedwarden: {printable(str(note))}\n{''.join(format_exception(error))}")
        with suppress(Exception):
            self._keep(idle_round(self.done + 1, came, refused, note))

    def form(self, came: Sequence[Contribution], sent: Params | None) -> Form:
        """The parameters that a round is about."""
        return form_of(*self._shared(came, sent), self.settings.buffers)

    def _shared(
        self, came: Sequence[Contribution], sent: Params | None
    ) -> tuple[list[Contribution], dict[str, Any] | None]:
        """What came and what was sent, without what stays at the clients."""
        stay = staying(sent or {name for each in came for name in each.arrays}, self.settings.personal)
        base = None if sent is None else {name: value for name, value in sent.items() if name not in stay}
        return [each.without(stay) for each in came], base

    def begin(self, form: Form, name: Callable[[], str]) -> None:
        """Start the run's record, or continue it; a run that cannot be recorded is guarded all the same."""
        if self.begun:
            return
        self.begun = True
        for resume in (True, False) if self.settings.resume else (False,):
            try:
                self.journal = journal = self._journal(form, name, resume)
                if journal.passed_over:
                    self.warn(journal.passed_over)
                self.guard.keep_secret(journal.secret)
                if journal.state is not None:
                    self.guard.load_state_dict(journal.state["warden"])
                    self.last = journal.state.get("model")
                    self.done = int(journal.state["round"])
                    self.log.info(f"fedwarden: run {journal.recorder.run} continues after round {self.done}")
                return
            except Exception as error:
                self.close("failed")
                what = "the last run cannot be continued" if resume else "this run is not recorded"
                self.warn(f"{what}: {reason(error)}")

    def _journal(self, form: Form, name: Callable[[], str], resume: bool) -> Journal:
        mine, guard = self.settings, self.guard
        options = {"options": mine.options} if mine.options else {}
        parts = [self.strategy, *([] if self.low_rank is None else [str(self.low_rank)])]
        recorded = {
            "strategy": self.strategy,
            "warden": repr(guard),
            "weigh_by": self.weigh_by,
            **({"rounds": self.planned} if self.planned and not resume else {}),  # a job knows its own rounds alone
            **({"guard": {"preset": mine.warden, **options}} if isinstance(mine.warden, str) else {}),
            **kept(guard),
            "experiment": experiment(parts, guard, form.slots, form.buffers),
        }
        home, named = None if mine.home is None else Path(mine.home), mine.run_name or name()
        return Journal(home, named, self.engine, recorded, PARTS, self.warn, resume, mine.sinks, self.software)

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
            self.warn(line)
        self.done = record.round
        self.record = record = replace(record, metrics={**record.metrics, **tally(record)})
        if self.journal is not None:
            try:
                self.journal.recorder.commit(record, self._state)
                self.journal.recorder.send()
            except Exception as error:
                self.warn(f"round {record.round} is not recorded: {reason(error)}")
        return self.record

    def _state(self) -> dict[str, Any]:
        found = {"round": self.done, "warden": self.guard.remembered()}
        return {**found, "model": self.last} if self.keeps_model and self.last else found

    def _said(self, round: int) -> Sequence[Note]:
        with suppress(Exception):
            return () if self.journal is None else self.journal.recorder.notes(round)
        return ()


def _unchanged(whole: bool, sent: Params | None) -> Answer:
    """The model as it is; where it is not known, an empty difference."""
    if sent is None:
        return Answer(False, {})
    return Answer(whole, dict(sent) if whole else Form.of(sent).nothing())
