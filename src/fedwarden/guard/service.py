"""A guarded server that gets whole rounds: it judges, combines and records each, and no error ends the run."""

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
    """How rounds are guarded and recorded: the options of an engine.

    ``warden`` is the name of a preset, with its ``options``, or a warden. ``aggregator`` replaces the preset's.
    ``shares`` names clients that may have more weight than others, such as one that truly has half of the data. The run
    is recorded under ``run_name`` in ``home``; ``resume`` continues the latest unfinished run of that name and
    experiment, if there is one. Parameters whose names end in one of ``buffers`` never enter a distance. Every round is
    sent to ``sinks``: names, tables with options, or objects; see docs/sinks.md. ``adapters``, "lora" or a table, is
    for a model with low-rank adapters: their products are judged and combined. ``personal`` has names of parameters, or
    patterns such as "head.*", that stay at the clients: they are neither judged nor combined, and keep the server's
    values. ``metrics`` lists the clients' metrics that are averaged and recorded, by default all.
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
        """The warden with these settings; ``engine`` is its name in messages."""
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
    """The result of a round: a whole model or a difference, and mean metrics. An empty difference changes nothing."""

    whole: bool
    params: Mapping[str, Any]
    metrics: Mapping[str, float] | None = None


class Service:
    """A guard, the run that it records, and the state of both between the rounds of one server."""

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
        """The run records the versions of ``software``, and ``weigh_by``, what clients are weighed by.

        With ``keeps_model`` checkpoints contain the model too, for an engine that saves none.
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
        self.word: Word | None = None  # the operator's, after it was read for this round
        self.heard = NO_WORD  # the part of it that applies if it cannot be read in the next round
        self.done = 0
        self.begun = False

    def round(
        self,
        came: Sequence[Contribution],
        refused: Sequence[Rejection],
        shown: Callable[[], Iterable[Any]],
        name: Callable[[], str] = str,
    ) -> Answer:
        """The new model, or the last one if the round made none.

        ``shown`` gives candidates for the model that the clients were sent; ``name`` gives a default name of the run.
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
        """End the run's record; a second call changes nothing."""
        journal, self.journal = self.journal, None
        if journal is None:
            return
        record = self.record
        told = {} if record is None else {"rounds": record.round, "excluded": list(record.excluded)}
        for line in journal.close(state, told, error):
            self.log.info(f"fedwarden: {line}")

    def warn(self, text: str) -> None:
        """One line in the server's log; text from clients is escaped for the terminal."""
        self.log.warning(f"fedwarden: {printable(text)}")

    def _sent(self, shown: Iterable[Any]) -> Params | None:
        """The model that the clients were sent: the first usable candidate, else the last model that was made."""
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
        """The operator's word, read once a round, just before the clients' models are judged.

        Not earlier: an engine may call from several threads, and only one thread may use the ledger.
        """
        if self.word is None and self.journal is not None:
            try:
                self.word = self.journal.recorder.word(self.done + 1, self.there)
            except Exception as error:
                self.word = self.heard
                self.warn(f"the operator's word cannot be read for round {self.done + 1}: {reason(error)}")
        return self.word or NO_WORD

    def _failed(self, came: Sequence[Contribution], refused: Sequence[Rejection], error: Exception) -> None:
        """Log and record an error of the guard itself; errors while doing so are ignored, so that the job continues."""
        note = Note.of("guard_failed", replies=len(came), error=reason(error))
        self.log.error(f"fedwarden: {printable(str(note))}\n{''.join(format_exception(error))}")
        with suppress(Exception):
            self._keep(idle_round(self.done + 1, came, refused, note))

    def form(self, came: Sequence[Contribution], sent: Params | None) -> Form:
        """The parameters of a round."""
        return form_of(*self._shared(came, sent), self.settings.buffers)

    def _shared(
        self, came: Sequence[Contribution], sent: Params | None
    ) -> tuple[list[Contribution], dict[str, Any] | None]:
        """The contributions and the model that was sent, without personal parameters."""
        stay = staying(sent or {name for each in came for name in each.arrays}, self.settings.personal)
        if sent is not None and self.low_rank is not None:
            self.low_rank.shared(list(sent), stay)  # or it is refused
        base = None if sent is None else {name: value for name, value in sent.items() if name not in stay}
        return [each.without(stay) for each in came], base

    def begin(self, form: Form, name: Callable[[], str]) -> None:
        """Start the run's record, or continue it; a run that cannot be recorded is still guarded."""
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
        """Log a round, keep it, and write it to the ledger; if the ledger cannot be written, the run continues."""
        word = self._hear()
        if not record.watches:  # no client was judged: their states stay, except for the operator's word
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
    """The unchanged model, or an empty difference if it is not known."""
    if sent is None:
        return Answer(False, {})
    return Answer(whole, dict(sent) if whole else Form.of(sent).nothing())
