"""The in-process federation: clients train, the warden decides, the server applies the update."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..attacks import DataAttack, Examples, Targeted
from ..core.config import parse
from ..core.errors import ConfigError, FedwardenError
from ..core.generators import torch_rng
from ..core.notes import Note
from ..core.registry import check_options, lookup, parameters
from ..core.reported import WORSE, joined
from ..core.seeds import numpy_rng
from ..core.stats import Counts, Mask, Weights
from ..core.types import NO_WORD, Cohort, Reported, RoundRecord, Server, Word, first_columns, output_layer
from ..core.words import count
from ..guard.adapters import Folded
from ..guard.arrays import staying
from ..guard.decide import decide
from ..guard.jury import worse
from ..guard.metrics import worst_accuracy
from ..guard.window import refuse_jurors
from ..sinks.courier import Live
from ..store.checkpoint import CheckpointError
from ..store.ledger import Run
from ..store.recorder import Recorder
from ..store.story import Story
from ..updates.updates import Updates
from .adversary import Adversary, Round
from .asynchronous import Flights
from .data.probes import foreign_probe
from .data.sources import Dataset
from .data.world import Rows, World, build_world, load_data, settle, source
from .evaluation import Asked, Evaluation, Jurors, fit, try_model
from .low_rank import LowRank
from .metrics import Detection, Truth, detection, round_detection, rounds_to, watch_quality
from .models import build_model
from .observers import Observer, Rewrite, Sight
from .scenario import Scenario
from .tasks import Task
from .training.engine import Engine, choose_group, one_thread
from .training.limits import processes
from .training.optimizer import LocalTraining
from .training.pool import Pool

OnRound = Callable[[RoundRecord], None]


class Trainer(Protocol):
    """Carries out the clients' part of a round."""

    def train(self, params: Tensor, round: int, client_ids: Sequence[str], changed: Mapping[str, Rows], /) -> Tensor:
        """The models of these clients, one row each; ``changed`` are rows that differ from those of the first round."""
        ...


SERVER = "server"  # the name under which the server trains on its own data


def find_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"train.device {name!r} cannot be used here ({reason}); 'cpu' always can") from error
    return device


def check(scenario: Scenario, model: nn.Module | None = None) -> None:
    """Refuse names and options that no component has, before data are loaded for minutes."""
    named = [("partition", scenario.data.partition)]
    if model is None and scenario.data.dataset.name != "memory":  # a program's own model may have no name
        named.append(("model", scenario.model))
    for kind, part in named:
        factory = lookup(kind, part.name)
        check_options(kind, part.name, factory, part.options, parameters(factory))
    for part in (*scenario.differences, *scenario.attacks):  # their clients may be named by the data
        part.make_part()
    scenario.task.make("task")
    scenario.guard.build()


class Federation:
    """The server and its clients; ``play`` yields the record of each round and changes the state.

    ``observers`` see what the client of that id sees, or an outsider where there is none. ``senders`` rewrite the
    update that a client sends, ``publisher`` that of the server. They are set before the rounds that they are to see.
    """

    def __init__(self, scenario: Scenario, data: Dataset | None = None, model: nn.Module | None = None) -> None:
        """``data`` is the scenario's data set, where it is loaded already; ``model`` stands in for the scenario's.

        What the scenario leaves to its data set is settled in ``self.scenario``.
        """
        check(scenario, model)
        data = load_data(scenario) if data is None else data
        self.scenario = scenario = settle(scenario, data)
        self.world = build_world(scenario, data)
        data, train = self.world.data, scenario.train
        self.task: Task = fit(scenario.task.make("task"), data, source(scenario))
        self.device = find_device(train.device)
        self.recipe: dict[str, Any] | None = None
        if model is None:
            self.recipe = {
                "name": scenario.model.name,
                "options": scenario.model.options,
                "shape": list(data.shape),
                "classes": data.classes,
            }
            model = build_model(**self.recipe, seed=scenario.seed)
        self.model = model.to(self.device)
        try_model(self.model, scenario, self.task, self.world)
        self.clients = tuple(self.world.rows)
        self.warden = scenario.guard.build(frozenset(self.clients), scenario.seed)
        local = LocalTraining(**train.model_dump(include={f.name for f in fields(LocalTraining)}))
        own = {key: o.model_dump(exclude_none=True, exclude={"rank"}) for key, o in train.own.items()}
        recipes = {scenario.client_named(key, "train.own"): replace(local, **how) for key, how in own.items()}
        self.joins = {scenario.client_named(key, "data.joins"): t for key, t in scenario.data.joins.items()}
        x, y, rows = self.world.x, self.world.y, self.world.rows
        engine = Engine(self.model, local, scenario.seed, x, y, rows, device=self.device, task=self.task, own=recipes)
        self.engine = replace(engine, group=choose_group(engine, train.trainer, train.group))
        self.params = self.engine.layout.flatten(self.model.state_dict())
        layout = self.engine.layout
        stay = staying(layout.names, scenario.personal)
        kinds = zip(layout.ranges(), layout.is_parameter, strict=True)
        self.measured = [(a, b) for (name, a, b), parameter in kinds if parameter and name not in stay]
        if not self.measured:
            raise ConfigError("personal: all parameters of the model stay at the clients; leave one to be shared")
        self.personal = torch.cat([torch.full((b - a,), name in stay) for name, a, b in layout.ranges()]).to(
            self.device
        )
        self.own: dict[str, Tensor] = {}  # each client's personal parameters, as it left them
        self.output, self.layers = output_layer(layout.shapes), first_columns(layout.names, layout.shapes)
        self.low_rank = LowRank.of(scenario, layout, self.measured)
        if self.low_rank is None:  # the coordinates of adapters are no weights of a model that a server could run
            self.warden.equip(self.server())
        self.truth = scenario.truth()
        asked = Asked(_goals(scenario, self.world), _kinds(scenario, self.world), scenario.recalls)
        self.evaluation = Evaluation(self.task, self.world, asked, scenario.seed, self.device)
        self.adversary = Adversary.of(scenario, self.measured, self.device)
        self.observers: dict[str, Observer] = {}
        self.senders: dict[str, Rewrite] = {}
        self.publisher: Rewrite | None = None
        self.previous: Tensor | None = None  # kept only where somebody may want to send it again
        self.jurors = Jurors(self.warden.guard.jurors, self.task, self.world, scenario.seed, self.device)
        self.losses: dict[str, Tensor] = {}  # of the jurors' examples, under the model that each received last
        plan = scenario.asynchronous
        self.flights = None if plan is None else Flights(plan, self.clients, scenario.seed)
        if plan is not None:
            refuse_jurors(self.warden.guard)
            if self.low_rank is not None:
                raise ConfigError("products of adapters are compared within a round, and a buffer is none")
        self.round = 0

    def server(self) -> Server:
        """The server: training on all of the reserve, and a probe of its first samples or of others."""
        rows, world, device = self.world.reserve, self.world, self.device
        blank = torch.zeros(1, *world.data.shape, dtype=world.x.dtype, device=device)
        server = Server(self.model, blank=blank, losses=self.task.losses)
        labelled = self.scenario.data.reserve_labels
        if len(rows) and labelled:
            own = replace(self.engine, rows={SERVER: rows}, group=0)  # no cycle through self

            def root(params: Tensor, round: int) -> Tensor:
                out = torch.empty(1, len(params), device=device)
                own.train(params, round, [SERVER], out)
                return out[0] - params

            server = replace(server, root=root)
        config = self.scenario.data
        if config.probe_from.name != "reserve":
            return replace(server, probe=foreign_probe(self.scenario, world.data, self.model, self.engine.layout))
        probe = rows[: config.probe]
        if not len(probe):
            return server
        asked, answers = self.task.ask(world.x[probe], world.y[probe], torch_rng(self.scenario.seed, "probe"))
        return replace(server, probe=asked.to(device), labels=answers.to(device) if labelled else None)

    def state_dict(self) -> dict[str, Any]:
        state = {"round": self.round, "params": self.params, "warden": self.warden.remembered()}
        state |= {name: held for name, held in {"losses": self.losses, "own": self.own}.items() if held}
        state |= {"asynchronous": self.flights.state_dict()} if self.flights else {}
        return state if self.previous is None else {**state, "previous": self.previous}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.round = int(state["round"])
        self.params = state["params"].to(self.device)
        self.previous = state["previous"].to(self.device) if "previous" in state else None
        self.losses = dict(state.get("losses", {}))
        self.own = {client: values.to(self.device) for client, values in state.get("own", {}).items()}
        self.warden.load_state_dict(state["warden"])
        if self.flights:
            self.flights.load_state_dict(state["asynchronous"])

    def play(
        self, trainer: Trainer | None = None, word_in: Callable[[int], Word] = lambda round: NO_WORD
    ) -> Iterator[RoundRecord]:
        """The rounds that are left; another ``trainer`` may carry out the clients' part of them.

        ``word_in`` gives the operator's word in a round that begins.
        """
        with nullcontext(trainer) if trainer else self._pool() as pool:
            while self.round < self.scenario.rounds:
                with one_thread():
                    record = self._step(pool, word_in(self.round + 1))
                yield record

    @property
    def workers(self) -> int:
        """The processes that train: as many as the scenario asks for, at most one per core and one per group."""
        return processes(self.scenario.train.workers, len(self.engine.groups(self.clients)))

    def _pool(self) -> Pool:
        train = self.scenario.train
        most = max(1, round(train.participation * len(self.clients)))
        return Pool(self.engine, self.recipe, self.workers, self.scenario.imports, most, train.patience)

    def _step(self, pool: Trainer, word: Word) -> RoundRecord:
        t = self.round + 1
        chosen = self._choose(t, word)
        told = self._ask_jurors(chosen)
        models = self._train(pool, t, chosen)

        def accepted(models: Tensor) -> Mask:
            cohort, _ = self._gathered(t, chosen, models, told)
            return decide(self.warden.guard, self.warden.memory, cohort, word=word)[1].unsuspected

        def foreseen(models: Tensor) -> tuple[Tensor, Weights, Mask]:
            cohort, folded = self._gathered(t, chosen, models, told)
            decision, outcome = self.warden.foresee(cohort, word)
            return self._update(folded, outcome.update)[0], outcome.weights, decision.unsuspected

        notes = self.adversary.act(Round(models, self.params, self.previous, t, chosen, accepted, foreseen))
        for i, client in enumerate(chosen):
            if client in self.senders:
                models[i] = self.params + self.senders[client](t, models[i] - self.params)
        cohort, folded = self._gathered(t, chosen, models, told)
        outcome = self.warden.step(cohort, word=word)
        if self.flights:
            refused = {rejection.client_id for rejection in outcome.record.rejected}
            inside = [i for i, client in enumerate(chosen) if client not in refused]
            self.flights.window = self.flights.window.after(cohort.replies.select(inside), self.flights.began)
        update, lost = self._update(folded, outcome.update)
        update = update * self.flights.rate if self.flights else update
        if self.publisher is not None:
            update = self.publisher(t, update)
        self.params = self.params + update
        self.previous = update if self.adversary.forgers else None
        self.round = t
        for client, observer in self.observers.items():
            observer(self._sight(t, client, chosen, models))
        record, (metrics, own) = outcome.record, self.evaluate(word)
        detected = round_detection(record, self.truth) if self.scenario.attacks else {}
        metrics = {**record.metrics, **lost, **metrics, **worst_accuracy(own, record.excluded), **detected}
        return replace(record, notes=(*record.notes, *notes), metrics=metrics, reported=joined(record.reported, own))

    def _train(self, pool: Trainer, t: int, chosen: Sequence[str]) -> Tensor:
        """The models of these clients as if all had been sent the global one: what they learned, put on top of it."""
        alone = bool(self.personal.any())  # each starts from a model of its own
        ranks = self.low_rank.ranks if self.low_rank else {}
        began = self.flights.began if self.flights else dict.fromkeys(chosen, t - 1)
        alike: dict[tuple[int, Hashable], list[int]] = {}
        for i, client in enumerate(chosen):
            same = client if alone else (client in self.warden.apart, ranks.get(client))
            alike.setdefault((began[client], same), []).append(i)
        models = torch.empty(len(chosen), len(self.params), device=self.device)
        for (version, _), index in alike.items():
            members, changed = [chosen[i] for i in index], self.world.changed(version + 1)
            sent = self.flights.models[version] if self.flights else self.warden.sent(members[0], self.params)
            trained = pool.train(self._at(members[0], sent), version + 1, members, changed).to(self.device)
            if sent is not self.params:  # what is not measured is no change of a model
                trained[:, self.adversary.columns] -= (sent - self.params)[self.adversary.columns]
            models[index] = trained
        if alone:
            self.own |= {client: models[i, self.personal] for i, client in enumerate(chosen)}
            models[:, self.personal] = self.params[self.personal]
        return models

    def _at(self, client: str, params: Tensor) -> Tensor:
        """A model as this client has it: at its own rank, with its own values in the layers that stay with it."""
        params = params if self.low_rank is None else self.low_rank.sent(params, client)
        return params.masked_scatter(self.personal, self.own[client]) if client in self.own else params

    def _lent(self, client: str) -> nn.Module:
        self.model.load_state_dict(self.engine.layout.unflatten(self._at(client, self.params)))
        return self.model

    def _ask_jurors(self, chosen: Sequence[str]) -> Reported:
        """What the jurors among these clients report of the model that they receive, from the second one on."""
        jurors = [client for client in chosen if client in self.jurors]
        if not jurors:
            return {}
        now = {}
        for juror in jurors:
            self.model.load_state_dict(self.engine.layout.unflatten(self.warden.sent(juror, self.params)))
            now[juror] = self.jurors.losses(self.model, juror)
        told = {c: worse(now[c].numpy(), self.losses[c].numpy()) for c in jurors if c in self.losses}
        self.losses |= now
        return {WORSE: told} if told else {}

    def _sight(self, t: int, client: str, chosen: Sequence[str], models: Tensor) -> Sight:
        """What a client sees of the round; copies, so that nothing it does reaches the federation."""
        if client not in chosen:
            return Sight(t, self.params.clone(), None, len(chosen), 0.0)
        share = len(self.world.rows[client]) / sum(len(self.world.rows[c]) for c in chosen)
        return Sight(t, self.params.clone(), models[chosen.index(client)].clone(), len(chosen), share)

    def _update(self, folded: Folded | None, update: Tensor) -> tuple[Tensor, dict[str, float]]:
        """What is added to the model, and what is to be recorded of it."""
        if self.low_rank is None or folded is None:
            return update.to(torch.float32), {}
        return self.low_rank.update(folded, update, self.params)

    def _gathered(self, t: int, chosen: Sequence[str], models: Tensor, told: Reported) -> tuple[Cohort, Folded | None]:
        """The cohort of a round, and the way back from the coordinates of adapters."""
        if self.low_rank is None:
            return self._cohort(t, chosen, models, told), None
        counts = self._counts(t, chosen).tolist()
        folded = self.low_rank.fold(t, chosen, models, counts, self.params, told)
        return folded.cohort, folded

    def _cohort(self, t: int, chosen: Sequence[str], models: Tensor, told: Reported) -> Cohort:
        counts = self._counts(t, chosen)
        updates = Updates.of(models, self.params, self.measured) if chosen else Updates.empty(len(self.params))
        cohort = Cohort(
            t, tuple(chosen), updates, counts, self.params, reported=told, output=self.output, layers=self.layers
        )
        return self.flights.window.beside(cohort, self.flights.began) if self.flights else cohort

    def _counts(self, t: int, chosen: Sequence[str]) -> Counts:
        claims = self.adversary.claims(t)
        return np.array([len(self.world.rows[c]) * claims.get(c, 1.0) for c in chosen], dtype=np.float64)

    def _choose(self, t: int, word: Word) -> list[str]:
        asked = [c for c in self.clients if t >= self.joins.get(c, 1) and self.warden.asks(c, word)]
        share = self.scenario.train.participation
        if self.flights:
            self.flights.send(t - 1, self.params, asked, share)
            return self.flights.land()
        if share == 1.0 or not asked:
            return asked
        take = max(1, round(share * len(asked)))
        picks = numpy_rng(self.scenario.seed, "participation", t).permutation(len(asked))[:take]
        return [asked[i] for i in sorted(picks)]

    def evaluate(self, word: Word) -> tuple[dict[str, float], Reported]:
        """How good the global model is; clients that are no longer asked hold back nothing."""
        self.model.load_state_dict(self.engine.layout.unflatten(self.params))
        held = {c: r for c, r in self.world.held_in(self.round).items() if len(r) and self.warden.asks(c, word)}
        return self.evaluation(self.model, held, self._lent)


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its number, its rounds, how the guard did, and the model as it is now.

    ``unchanged`` says why no round changed the model, where none did: such a run is recorded as failed.
    """

    run: int
    name: str
    records: list[RoundRecord]
    detection: Detection
    summary: dict[str, Any]
    params: Tensor
    model: nn.Module
    unchanged: str | None = None

    def __repr__(self) -> str:
        return f"run {self.run}, {self.name}: {Story.of(self.records)}"


class Fruitless(FedwardenError):
    """A run in which no round changed the model."""

    @classmethod
    def of(cls, result: Result) -> Fruitless:
        many = count(len(result.records), "round")
        return cls(f"run {result.run} failed: none of its {many} changed the model; in the last, {result.unchanged}")


def simulate(
    scenario: Scenario,
    folder: Path | None = None,
    resume: str | int | None = None,
    on_round: OnRound | None = None,
    on_start: Callable[[int, Federation], None] | None = None,
    engine: str = "in-process",
    trainer: Trainer | None = None,
    data: Dataset | None = None,
    model: nn.Module | None = None,
) -> Result:
    """Run a scenario and record it; ``resume`` continues a run that was interrupted, to the same end.

    ``engine`` signs the run; its ``trainer``, if it has one, trains the clients. ``data`` and ``model`` stand in for
    those that the scenario names.
    """
    live = Live(sink.build() for sink in scenario.sinks)
    with Recorder(folder, live, scenario.checkpoint_every, scenario.rounds) as recorder:
        federation = Federation(scenario, data, model)
        scenario, before = federation.scenario, federation.params
        notes: tuple[Note, ...] = ()
        if resume is None:
            recorder.start(scenario.name, engine, scenario.model_dump(mode="json"))
        else:
            found = recorder.ledger.run(resume)
            _, notes = recorder.resume(found, _same(found, scenario), partial(_restore, federation))
        if on_start:
            on_start(recorder.run, federation)
        for record in federation.play(trainer, partial(recorder.word, clients=federation.clients)):
            noted = (*notes, *recorder.notes(record.round), *record.notes)
            record, notes = replace(record, notes=noted), ()
            recorder.commit(record, federation.state_dict)
            recorder.send()
            if on_round:
                on_round(record)
        records = recorder.ledger.records(recorder.run)
        truth = scenario.truth()
        caught = detection(records, truth)
        summary = summarise(records, caught, truth, scenario.target, scenario.target_loss)
        unchanged = _why_unchanged(records) if torch.equal(before, federation.params) else None
        recorder.finish(summary, unchanged)
        federation.model.load_state_dict(federation.engine.layout.unflatten(federation.params))
        return Result(
            recorder.run, scenario.name, records, caught, summary, federation.params, federation.model, unchanged
        )


def _why_unchanged(records: Sequence[RoundRecord]) -> str:
    """Why a model is as it was at first, in words."""
    kept = ("aggregator_failed", "all_excluded", "no_finite_output", "no_usable_reply")
    reasons = [str(note) for record in records for note in record.notes if note.kind in kept]
    refused = [rejection.reason for record in records[-1:] for rejection in record.rejected]
    if refused and all(reason.kind == "update_not_finite" for reason in refused):
        return "the updates of all clients were not finite, as after training that diverges; lower train.lr"
    return (reasons or ["the updates of the clients are zero; raise train.lr or train.epochs"])[-1]


def summarise(
    records: Sequence[RoundRecord], found: Detection, truth: Truth, target: float | None, target_loss: float | None
) -> dict[str, Any]:
    """A run in a few numbers; ``false_exclusions`` and ``let_in`` count client-rounds."""
    accuracies = {r.round: r.metrics["accuracy"] for r in records if "accuracy" in r.metrics}
    losses = {r.round: r.metrics["loss"] for r in records if "loss" in r.metrics}
    rounds = [round_detection(r, truth) for r in records]
    catches = [min(truth[c]) + found.rounds_to_detection[c] - 1 for c in found.caught]
    last = records[-1].metrics if records else {}
    return {
        "rounds": len(records),
        "accuracy": accuracies[max(accuracies)] if accuracies else None,
        "loss": last.get("loss"),
        "attack_success": last.get("attack_success"),
        "rounds_to_target": None if target is None else rounds_to(accuracies, target),
        "rounds_to_target_loss": None if target_loss is None else rounds_to(losses, target_loss, below=True),
        "attackers": len(found.attackers),
        "caught": len(found.caught),
        "wronged": len(found.wronged),
        "precision": found.precision,
        "recall": found.recall,
        "f1": found.f1,
        "false_exclusions": sum(int(r["false_exclusions"]) for r in rounds),
        "let_in": sum(int(r["let_in"]) for r in rounds),
        "last_catch": max(catches) if catches else None,
        "rounds_to_detection": dict(found.rounds_to_detection),
        "excluded": dict(found.first_excluded),
        "watches": watch_quality(records, truth),
    }


def _goals(scenario: Scenario, world: World) -> list[Examples]:
    """The test samples as each attack with a target presents them, with the label it wants."""
    test = Examples(world.data.x_test, world.data.y_test.numpy())
    attacks = [config.make("attack") for config, _, members in scenario.plans() if members and config.word == "attack"]
    goals = [attack.goal(test, world.data.classes) for attack in attacks if isinstance(attack, Targeted)]
    return [goal for goal in goals if goal is not None and len(goal.y)]


def _kinds(scenario: Scenario, world: World) -> list[Examples]:
    """The test samples as the inputs of the clients are that differ in them, one set for each such difference.

    One that changes labels, or that needs samples of its own, is no kind of inputs and has none.
    """
    test, found = Examples(world.data.x_test, world.data.y_test.numpy()), []
    nothing = Examples(test.x[:0], test.y[:0])
    for config, number, members in scenario.plans():
        difference = config.make("attack") if config.word == "difference" and members else None
        if isinstance(difference, DataAttack):
            with suppress(ValueError):
                rng = numpy_rng(scenario.seed, "own kind", number)
                found.append(difference.poison(test, nothing, world.data.classes, rng))
    return [kind for kind in found if np.array_equal(kind.y, test.y)]


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the numbers of a round: neither how many rounds follow, nor where the work is done or told."""
    train = {k: v for k, v in config["train"].items() if k not in ("workers", "patience")}
    return {**{k: v for k, v in config.items() if k not in ("rounds", "sinks", "imports")}, "train": train}


def _same(run: Run, scenario: Scenario) -> dict[str, Any]:
    """The scenario as the ledger is to keep it, if the run was started with the same settings."""
    config = scenario.model_dump(mode="json")
    started = parse(Scenario, run.config).model_dump(mode="json")  # with the defaults of keys that came later
    before, after = _deciding(started), _deciding(config)
    changed = [k for k in after if before[k] != after[k]]
    if changed:
        raise ConfigError(f"run {run.id} was started with other settings of {', '.join(changed)}; resume it unchanged")
    return {**config, "imports": started["imports"]}


def _restore(federation: Federation, state: Any, round: int) -> None:
    """Load a checkpoint, if it is one of that round and of this model."""
    for name in ("params", "previous") if "previous" in state else ("params",):
        found, wanted = state[name], federation.params
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise CheckpointError(f"{name} has shape {list(found.shape)}; this model has {list(wanted.shape)}")
    if state["round"] != round:
        raise CheckpointError(f"it is of round {state['round']!a}")
    federation.load_state_dict(state)
