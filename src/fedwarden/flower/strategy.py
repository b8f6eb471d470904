"""Any Flower strategy, guarded: what clients send is screened and judged before the strategy combines the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.superlink.grid import HttpGrid

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.registry import component
from ..core.reported import WORSE, joined
from ..core.types import NO_WORD, Cohort, Rejection, Reported, RoundRecord, Word
from ..core.words import reason
from ..guard.adapters import Adapters, Folded
from ..guard.admission import cohort_of
from ..guard.arrays import BUFFERS, Unfit, conversion_notes, staying
from ..guard.decide import Decision
from ..guard.journal import experiment, kept
from ..guard.metrics import WORST, accuracy_of, worst_accuracy
from ..guard.telling import lines, tally
from ..guard.warden import Warden
from ..models.trial import examine
from .grid import HandedOver, OneByOne, Visible
from .inbox import Letter, bound_metrics, evaluations, hand_over, match, open_letters, rebased, seen_of, told_in, weigh
from .journal import Journal, pack_arrays, restore_server_state, unpack_arrays, warn
from .names import Name, Names
from .records import Template, arrays_of, listed, scalars, view
from .spool import Spool
from .wrapped import HOLDING, NOISY, TREES, Declared, chain, innermost, metrics_apart

LOG = logging.getLogger("flwr")  # beside Flower's own lines
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Guarded(Strategy):
    """Wraps a strategy: ``Guarded(FedAvg())``; everything else stays as it was.

    Each round the warden admits, scores and decides, and the wrapped strategy combines the replies that remain. A
    client is its node's id. Rounds go to the ledger, and a run that was killed can be continued.
    """

    def __init__(
        self,
        strategy: Strategy,
        warden: str | Warden = "auto",
        aggregator: Any = None,
        name: str = "",
        home: str | Path | None = None,
        resume: bool = False,
        buffers: Sequence[str] = BUFFERS,
        client_name: Name | str = str,
        sinks: Sequence[Any] = (),
        accuracy: str = "",
        preset: str = "",
        adapters: str | Mapping[str, Any] | None = None,
        personal: str | Sequence[str] = (),
        metrics: str | Sequence[str] | None = None,
        spool: str | Path | None = None,
    ) -> None:
        """``warden`` is a preset's name, as ``preset`` is, or a warden, whose aggregator is not used unless given here.

        ``aggregator`` combines in place of the wrapped strategy. ``name`` and ``home`` say where the run is recorded;
        ``resume`` continues the latest unfinished run of that name and experiment, if there is one. Arrays whose names
        end in one of ``buffers`` never enter a distance. ``client_name`` gives a node's name in the records: a function
        of its number, or the key under which nodes send one in a metric or config record, as "partition-id".
        ``sinks`` are names, tables with options or sinks that every round is sent to; see docs/sinks.md. ``accuracy``
        is the metric that is shown as the accuracy, by default the first whose name says so. ``adapters``, as "lora" or
        a table, says that the model has low-rank adapters: their products are judged and combined, by the warden.
        ``personal`` are names of arrays, or patterns as "head.*", that stay at the clients: neither judged nor
        combined, they keep the server's values, whatever a client sends. ``metrics`` lists the metrics of clients that
        are averaged and recorded, beside the one that they are weighed by; by default all. ``spool`` is a folder on a
        disk: the arrays of replies go there as they come, one reply after another, and are read from there.
        """
        if isinstance(strategy, type) or not hasattr(strategy, "aggregate_train"):
            kind = strategy if isinstance(strategy, type) else type(strategy)
            got = f"{'the class' if kind is strategy else 'a'} {kind.__module__}.{kind.__name__}"
            raise TypeError(f"Guarded wraps a strategy of flwr.serverapp.strategy, such as FedAvg(); got {got}")
        if trees := [type(s).__name__ for s in chain(strategy) if isinstance(s, TREES)]:
            raise ConfigError(f"Guarded judges weights; the replies of {trees[0]} are trees: run it without Guarded")
        warden = preset or warden
        if not isinstance(warden, str | Warden):
            raise TypeError(f"warden is the name of a preset or a Warden; got {type(warden).__name__}")
        self.strategy = strategy
        self.warden = copy(Warden.preset(warden) if isinstance(warden, str) else warden)
        self.preset = warden if isinstance(warden, str) else ""
        self.adapters = Adapters.of(adapters)
        self.combines = aggregator is not None or self.adapters is not None
        if self.combines:
            self.warden.aggregator = component("aggregator", aggregator or "mean")
            self.warden.carried = self.warden.aggregator.init()
        self.name = name or type(strategy).__name__
        self.home = None if home is None else Path(home)
        self.resume, self.buffers, self.sinks = resume, tuple(buffers), tuple(sinks)
        self.personal, self.metrics = personal, (metrics,) if isinstance(metrics, str) else metrics
        self.names = Names(client_name)
        admission = self.warden.admission
        self.names.check(
            {*admission.shares, *(admission.known or ()), *self.warden.guard.trusted, *self.warden.guard.jurors}
            | ({f"those of run {standing}"} if (standing := self.warden.guard.standing) else set())
        )
        noisy = [type(s).__name__ for s in chain(strategy) if isinstance(s, NOISY)]
        if self.adapters is not None:
            if noisy:
                raise ConfigError(f"{noisy[0]} adds noise to the factors of adapters: leave one of them out")
            self.warden = self.warden.of_products()
        if self.warden.guard.paired and noisy:
            raise ConfigError(
                f"paired sends jurors a second model that shows one update without the noise of {noisy[0]}: leave one "
                "of them out"
            )
        self.spool = None if spool is None else Spool(spool)
        if spool is not None and not self.combines and (held := [s for s in chain(strategy) if isinstance(s, HOLDING)]):
            raise ConfigError(
                f"{type(held[0]).__name__} holds all replies in memory, where spool would save nothing: leave it out, "
                'or let fedwarden combine: Guarded(FedAvg(), aggregator="median", spool=...)'
            )
        self.template: Template | None = None
        self.ranks: dict[str, tuple[int, ...]] = {}  # of clients whose adapters have others than the model's
        self.arrays = ArrayRecord()
        self.grid: Any = None
        self.sent: list[Message] = []
        self.journal: Journal | None = None
        self.record: RoundRecord | None = None
        self.word, self.heard = NO_WORD, 0  # the operator's, and the round that it was read for
        self.there: frozenset[str] = frozenset()  # with these clients
        self.done = 0
        self.accuracy, self.found_in = accuracy, 0  # the round whose accuracy was found among other metrics

    def summary(self) -> None:
        """Log the guard and the strategy it guards."""
        LOG.info("\t├──> Guarded by %r", self.warden)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all rounds, or those that are left of a run that was interrupted; as in every Flower strategy."""
        grid = self._careful(grid, timeout)
        initial_arrays = self._meet(initial_arrays)[1]
        self.journal, self.word, self.heard = self._journal(num_rounds), NO_WORD, 0
        try:
            arrays = self._continue(initial_arrays)
            rest = max(0, num_rounds - self.done)
            follow = None if evaluate_fn is None else self._following(evaluate_fn)
            self.grid = grid = cast(Grid, HandedOver(grid))
            result = super().start(grid, arrays, rest, timeout, train_config, evaluate_config, follow)
            self._send()
        except BaseException as error:
            cut = isinstance(error, KeyboardInterrupt)
            self.journal.close("interrupted" if cut else "failed", error="" if cut else reason(error))
            raise
        for line in self.journal.close("done", self._told()):
            LOG.info("fedwarden: %s", line)
        return self._shifted(result, arrays)

    def _careful(self, grid: Grid, timeout: float) -> Grid:
        """The grid as a run uses it: that of a deployment, or with a spool, pulls each reply by itself."""
        if self.spool is None:
            return cast(Grid, OneByOne(grid)) if isinstance(grid, HttpGrid) else grid
        return cast(Grid, OneByOne(grid, self.spool.keep))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, to nodes that the warden asks."""
        t, (template, arrays) = server_round + self.done, self._meet(arrays)
        self._send()
        self.arrays = arrays
        self.sent = self._ask(self.strategy.configure_train, t, arrays, config, grid, self._asks)
        for message in self.sent:
            client = self.names(message.metadata.dst_node_id)
            if client in self.warden.apart or client in self.ranks:  # strategies share a content among nodes
                records = message.content.array_records.items()
                place, record = next((x for x in records if x[1] is arrays), None) or arrays_of(message)
                own = self._brought(record, client) if client in self.ranks else None
                message.content = RecordDict(
                    {**message.content, place: own or template.moved(record, self.warden.shift)}
                )
        return self.sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Screen, judge, and let the wrapped strategy combine what remains."""
        t = server_round + self.done
        assert self.template is not None
        known = set(self.warden.excluded)
        messages, record, notes, made = self._judge(t, replies, self.template)
        if made is None:
            arrays, metrics = self._delegate(t, messages, notes)
        else:
            metrics = self._own_metrics(messages, notes)
            arrays = self._sound(made, notes)
        weights = np.zeros(len(record.weights)) if arrays is None else record.weights
        record = self.warden.remember(replace(record, weights=weights, notes=(*record.notes, *notes)))
        for line in lines(record, known):
            warn(line)
        own = tally(record)
        record = replace(record, metrics={**record.metrics, **scalars(metrics, "train/"), **own})
        self._commit(record, self.arrays if arrays is None else arrays)
        return arrays, MetricRecord({**(metrics or {}), **own})

    def _judge(
        self, t: int, replies: Iterable[Message], template: Template
    ) -> tuple[list[Message], RoundRecord, list[Note], ArrayRecord | None]:
        """The replies to combine, the round's record, notes for it, and the model where the warden combines.

        No other row outlives the call: models made from here on share the memory with the kept replies alone.
        """
        found, lost, named = match(self.sent, replies, self.names, getattr(self.grid, "unreadable", {}))
        letters, refused = open_letters(self._listed(found), template, self._weight_key, self.arrays, self.adapters)
        letters = rebased(letters, template, self.arrays, self._sent_to(template))
        told = told_in(letters, "train/", {self._weight_key, self.names.key})
        reported = joined(told, seen_of(letters, self.sent, getattr(self.grid, "arrived", None)))
        folded = self._folded(t, letters, template, reported)
        cohort = folded.cohort if folded else self._cohort(t, letters, template, reported)
        decision = self.warden.decide(cohort, [*lost, *refused, *self._late()], self._judging)
        self._judged(letters, decision)
        combined = [letters[i] for i, kept in zip(decision.index, decision.kept, strict=True) if kept]
        conversions = conversion_notes([(letter.client_id, letter.converted) for letter in letters])
        notes = [*self._said(t), *named, *conversions, *bound_metrics(combined, self._weight_key)]
        messages = [letter.message for letter in combined]
        if self.combines:
            outcome = self.warden.combine(decision)
            if folded is not None:
                made, told_too = folded.unfold(outcome.update)
                record = replace(outcome.record, metrics={**outcome.record.metrics, **told_too})
                return messages, record, notes, template.record(made)
            params = template.flatten(self.arrays)
            return messages, outcome.record, notes, template.unflatten(params + outcome.update.float())
        counts = decision.cohort.num_examples * decision.weights
        weigh(combined, counts[decision.kept], self._weight_key, Declared.by(self.strategy).train_loss_key)
        hand_over(combined, template, decision)
        return messages, decision.record(counts / (counts.sum() or 1.0)), notes, None

    def _asks(self, client: str) -> bool:
        """Whether a client is to be sent a message."""
        return self.warden.asks(client, self._judging)

    def _sent_to(self, template: Template) -> Mapping[str, ArrayRecord]:
        """The arrays that clients were sent, where these are others than those of the round."""
        apart = self.warden.apart
        return dict.fromkeys(apart, template.moved(self.arrays, self.warden.shift)) if apart else {}

    def _late(self) -> list[Rejection]:
        """Replies that came when nobody waited for them any more."""
        return []

    def _cohort(self, t: int, letters: Sequence[Letter], template: Template, reported: Reported) -> Cohort:
        params = template.flatten(self.arrays)
        return cohort_of(t, letters, template, params, base=params, reported=reported)

    def _folded(self, t: int, letters: Sequence[Letter], template: Template, reported: Reported) -> Folded | None:
        """The cohort in the coordinates of its adapters, if there are any; the ranks of its clients are remembered."""
        if self.adapters is None:
            return None
        model, names = template.layers(self.arrays), template.names
        usual = self.adapters.ranks(names, model)
        self.ranks |= {letter.client_id: self.adapters.ranks(names, letter.layers) for letter in letters}
        self.ranks = {client: ranks for client, ranks in self.ranks.items() if ranks != usual}
        return self.adapters.fold(t, letters, names, model, template.measured, reported)

    def _judged(self, letters: Sequence[Letter], decision: Decision) -> None:
        """What else is made of a decision."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, to nodes in good standing."""
        t = server_round + self.done
        excluded = set(self.warden.excluded)
        self.sent = self._ask(self.strategy.configure_evaluate, t, arrays, config, grid, lambda c: c not in excluded)
        return self.sent

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The wrapped strategy's average of the evaluations that can be read."""
        t = server_round + self.done
        found, lost, _ = match(self.sent, replies, self.names, getattr(self.grid, "unreadable", {}), settle=False)
        found, key, limits = self._listed(found), self._weight_key, self.warden.admission
        kept, unfit, bounded, reported = evaluations(found, key, limits, self.names.key)
        notes = [Note.of("evaluation_left_out", r.client_id, cause=r.reason) for r in [*lost, *unfit]]
        notes += [Note.of("evaluation", *note.clients, cause=note) for note in bounded]
        try:
            metrics = self.strategy.aggregate_evaluate(t, kept)
            told = scalars(metrics, "evaluate/")
        except Exception as error:  # nothing that a client sends may end the run
            metrics, told = None, {}
            notes.append(Note.of("evaluations_failed", error=reason(error)))
        self._amend(told, notes, reported)
        return metrics

    def _hear(self, t: int, nodes: Iterable[int] = ()) -> None:
        """Read the operator's word for a round that begins, and again for nodes that join before they are asked."""
        there = frozenset(map(self.names, nodes))
        if self.journal is not None and (self.heard != t or not there <= self.there):
            self.word, self.heard, self.there = self.journal.recorder.word(t, there), t, there

    def _said(self, t: int) -> Sequence[Note]:
        return () if self.journal is None else self.journal.recorder.notes(t)

    @property
    def _judging(self) -> Word:
        """The operator's word as the warden gets it."""
        return self.word

    def _meet(self, arrays: ArrayRecord) -> tuple[Template, ArrayRecord]:
        """The form of the model, learned from the first arrays seen, and them at the rank that adapters are to have."""
        if self.template is None:
            template = self._form(arrays)
            if not template.measured:
                raise ConfigError(
                    "Guarded judges weights; the model has no floating-point array to share: run it alone"
                )
            if self.adapters is not None:
                many = len(self.adapters.pairs(template.names))
                self.adapters.shared(template.names, template.personal)  # or it is refused
                if self.adapters.rank is not None:
                    model, ranks = template.layers(arrays), [self.adapters.rank] * many
                    brought = self.adapters.brought(template.names, model, ranks)
                    arrays = ArrayRecord(dict(zip(template.names, map(Array, brought), strict=True)))
                    template = self._form(arrays)
            self.template = template
        return self.template, arrays

    def _form(self, arrays: ArrayRecord) -> Template:
        try:
            return Template.of(arrays, self.buffers, staying(list(arrays), self.personal))
        except Unfit as error:
            raise ConfigError(f"Guarded judges arrays of numbers; the model {error}") from error

    def _brought(self, record: ArrayRecord, client: str) -> ArrayRecord:
        """The model at the ranks of a client."""
        assert self.template is not None
        assert self.adapters is not None
        names, layers = self.template.names, self.template.layers(record)
        brought = self.adapters.brought(names, layers, self.ranks[client], client)
        return ArrayRecord(dict(zip(names, map(Array, brought), strict=True)))

    def _ask(
        self,
        configure: Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]],
        t: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        asks: Callable[[str], bool],
    ) -> list[Message]:
        """The messages to nodes that are asked; a strategy that waits for more nodes than these is shown others too."""
        core = Declared.by(self.strategy)
        floor = max(core.min_train_nodes, core.min_evaluate_nodes, core.min_available_nodes)

        def shown(nodes: list[int]) -> list[int]:
            self._hear(t, nodes)
            mine = [node for node in nodes if asks(self.names(node))]
            others = [node for node in nodes if not asks(self.names(node))]
            return mine + others[: max(0, floor - len(mine))]

        messages = list(configure(t, arrays, config, cast(Grid, Visible(grid, shown))))
        self._hear(t, [m.metadata.dst_node_id for m in messages])
        return [m for m in messages if asks(self.names(m.metadata.dst_node_id))]

    def _delegate(
        self, t: int, messages: Sequence[Message], notes: list[Note]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of the replies; where that is no model, a note and its old state."""
        before = [(s, dict(vars(s))) for s in chain(self.strategy)]
        arrays: ArrayRecord | None = None
        metrics = None
        try:
            with metrics_apart(innermost(self.strategy), notes):
                made, metrics = self.strategy.aggregate_train(t, list(messages))
            if made is not None:
                arrays = self._sound(made, notes)
            elif messages:
                notes.append(Note.of("no_model", replies=len(messages)))
        except Exception as error:  # nothing that a client sends may end the run
            notes.append(Note.of("strategy_failed", replies=len(messages), error=reason(error)))
        if arrays is None:
            for strategy, state in before:
                vars(strategy).clear()
                vars(strategy).update(state)
        return arrays, metrics

    def _sound(self, arrays: ArrayRecord, notes: list[Note]) -> ArrayRecord | None:
        """A new model in the dtypes of the old one, with no variance below zero; None and a note where it is none."""
        assert self.template is not None
        form, trial, settled = self.template, self.warden.trial, self.template.restore(arrays)
        trial = trial if trial is not None and trial.layout.names == form.names else None
        last = None if trial is None else form.flatten(self.arrays)
        found = examine(form.flatten(settled), form.names, form.sizes, last, trial)
        for name, lowest in found.negative.items():
            settled[name] = Array(np.maximum(view(settled[name]), 0))
            notes.append(Note.of("variance_negative", array=name, lowest=lowest))
        if found.fault:
            notes.append(Note.of("model_not_finite" if found.fault == "not_finite" else found.fault))
        for name in filter(
            form.personal.__contains__, form.names
        ):  # averages of equal numbers differ in their last bits
            settled[name] = self.arrays[name]
        return None if found.fault else settled

    def _own_metrics(self, messages: Sequence[Message], notes: list[Note]) -> MetricRecord | None:
        """The wrapped strategy's average of the metrics where fedwarden combines the arrays."""
        with metrics_apart(innermost(self.strategy), notes):
            average = Declared.by(self.strategy).train_metrics_aggr_fn
            return average([m.content for m in messages], self._weight_key) if messages and average else None

    @property
    def _mode(self) -> tuple[str, ...]:
        """What else must be the same in a run that is continued."""
        return ()

    @property
    def _weight_key(self) -> str:
        return Declared.by(self.strategy).weighted_by_key

    def _listed(self, found: list[tuple[str, Message]]) -> list[tuple[str, Message]]:
        """The replies without metrics that are not on the list; what the strategy and jurors need stays."""
        if self.metrics is not None:
            need = {self._weight_key, Declared.by(self.strategy).train_loss_key or "", *self.metrics}
            need |= {WORSE.removeprefix("train/")} if self.warden.guard.jurors else set()
            for message in (reply for _, reply in found if reply.has_content()):
                message.content.update(listed(message.content, need))
        return found

    def _journal(self, rounds: int) -> Journal:
        assert self.template is not None
        config = {"strategy": type(self.strategy).__name__, "warden": repr(self.warden), "rounds": rounds}
        guard = {"guard": {"preset": self.preset}} if self.preset else {}
        names, template = [*self._mode, *(type(s).__name__ for s in chain(self.strategy))], self.template
        if self.adapters is not None:
            names.append(str(self.adapters))
        same = experiment(names, self.warden, template.slots, (*template.buffers, *sorted(template.personal)))
        recorded = {**config, **guard, **kept(self.warden), "experiment": same}
        journal = Journal(self.home, self.name, recorded, self.strategy, self.resume, sinks=self.sinks)
        if journal.passed_over:
            warn(journal.passed_over)
        self.warden.keep_secret(journal.secret)
        return journal

    def _continue(self, initial: ArrayRecord) -> ArrayRecord:
        """The arrays to go on from: those of the last committed round, else the initial ones."""
        assert self.journal is not None
        state = self.journal.state
        if state is None:
            return initial
        self.done = int(state["round"])
        self._recall(state)
        restore_server_state(self.strategy, state["server"])
        LOG.info("fedwarden: run %d continues after round %d", self.journal.recorder.run, self.done)
        return unpack_arrays(state["model"])

    def _commit(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self.record = record
        if self.journal is not None:
            self.record = self.journal.keep(record, pack_arrays(arrays), self._remembered())

    def _remembered(self) -> dict[str, Any]:
        """What a run that is continued needs besides the model."""
        ranks = {client: list(ranks) for client, ranks in self.ranks.items()}
        found = {"warden": self.warden.remembered(), "names": self.names.state_dict()}
        return {**found, "ranks": ranks} if ranks else found

    def _recall(self, state: Mapping[str, Any]) -> None:
        self.warden.load_state_dict(state["warden"])
        self.names.load_state_dict(state.get("names", {}))
        self.ranks = {client: tuple(ranks) for client, ranks in state.get("ranks", {}).items()}

    def _amend(self, metrics: Mapping[str, float], notes: Sequence[Note], reported: Reported | None = None) -> None:
        """Add what evaluation says to the round's record."""
        for note in notes:
            warn(str(note))
        if self.record is not None and (metrics or notes or reported):
            worst = worst_accuracy(reported or {}, self.record.excluded, self.accuracy)
            new = {**self.record.metrics, **metrics, **worst}
            if "accuracy" in metrics:
                self.found_in = 0
            elif "accuracy" not in new or self.found_in == self.record.round:
                others = {key: value for key, value in new.items() if key not in ("accuracy", WORST)}
                if (accuracy := accuracy_of(others, self.accuracy)) is not None:
                    new["accuracy"], self.found_in = accuracy, self.record.round
            known = joined(self.record.reported, reported or {})
            self.record = replace(self.record, metrics=new, notes=(*self.record.notes, *notes), reported=known)
            if self.journal is not None:
                self.journal.recorder.amend(self.record)

    def _send(self) -> None:
        """Send the last round to the sinks, when all that is known of it is in the ledger."""
        if self.journal is not None:
            self.journal.recorder.send()

    def _following(self, evaluate: EvaluateFn) -> EvaluateFn:
        """The central evaluation, with the run's own count of rounds; its metrics go to the ledger too."""

        def follow(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate(server_round + self.done, arrays)
            if server_round:
                self._amend(scalars(metrics), ())
            return metrics

        return follow

    def _shifted(self, result: Result, arrays: ArrayRecord) -> Result:
        """A result with the run's own count of rounds, and the model even where no round changed it."""
        for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, kind, {t + self.done: metrics for t, metrics in getattr(result, kind).items()})
        if not result.arrays:
            result.arrays = arrays
        return result

    def _told(self) -> dict[str, Any]:
        """The run in a few numbers."""
        if self.record is None:
            return {}
        accuracy = self.record.metrics.get("accuracy")
        return {"rounds": self.record.round, "accuracy": accuracy, "excluded": list(self.record.excluded)}
