"""The warden: a guard, an aggregator, and all that they remember between rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from importlib import import_module
from secrets import randbits
from typing import Any, cast

import numpy as np
import torch

from ..core.errors import ConfigError, returned
from ..core.html import facts
from ..core.notes import Note
from ..core.protocols import Aggregator, CompleteAggregator, CompletePolicy, Policy
from ..core.registry import Spec, component, describe, lookup, make, parameters
from ..core.reported import TRIGGER, joined
from ..core.types import NO_WORD, Aggregate, Cohort, Outcome, Rejection, RoundRecord, Server, State, Word
from ..core.words import listed
from ..models.trial import Trial, examine
from ..models.triggers import Triggers
from ..store.series import Series
from ..store.story import Story
from .admission import Reply, admit
from .backdoors import Cleaner
from .decide import Decision, decide
from .judge import Combine, Guard, Memory, Watch
from .jury import FEWEST, Hearings, Pair
from .limits import Admission
from .population import Population
from .word import exclusions, heard, obey

RECENT = 100  # rounds that a warden can show
GUARD = tuple(part.name for part in fields(Guard))  # what a guard is made of


class Warden:
    """Guards a federation: give it each round's cohort and apply the update it returns.

    >>> from fedwarden import Updates
    >>> rows = np.array([[0.0, 0.1], [0.1, 0.0], [0.1, 0.1], [0.2, 0.1], [9.0, 9.0]])
    >>> watch = Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, start_round=1)
    >>> warden = Warden([watch], policy="exclude")
    >>> cohort = Cohort(1, tuple("abcde"), Updates.of(rows), np.full(5, 10.0))
    >>> warden.step(cohort).weights.tolist()
    [0.25, 0.25, 0.25, 0.25, 0.0]
    """

    def __init__(
        self,
        watches: Sequence[Watch] = (),
        policy: Spec | Policy = "observe",
        aggregator: Spec | Aggregator = "mean",
        combine: Combine = "any",
        admission: Admission | None = None,
        share_copies: bool = False,
        quorum: int = 1,
        shorten: float | None = None,
        joint: float | None = None,
        newcomers: bool = True,
        trusted: Collection[str] = (),
        jurors: Collection[str] = (),
        paired: bool = False,
        secret: int | None = None,
        standing: str | int | None = None,
        backdoors: bool = False,
    ) -> None:
        """For ``combine`` and what follows see :class:`Guard`; without a ``secret`` one is drawn.

        With ``backdoors`` a server that has images looks for triggers of backdoors in its model, and unlearns them.
        """
        for name, clients in {"trusted": trusted, "jurors": jurors}.items():
            if isinstance(clients, str):
                raise ConfigError(f"{name} is a list of clients, as [{clients!r}]; got {clients!r}")
        if isinstance(watches, str):
            raise ConfigError(f"watches are a list; a preset is made by Warden.preset({watches!r})")
        odd = [watches] if isinstance(watches, Watch) else [w for w in watches if not isinstance(w, Watch)]
        if odd:
            raise ConfigError(f"watches are a list, as [Watch('centroid_distance')]; got {odd[0]!r:.60}")
        if combine not in ("any", "all", "vote"):
            raise ConfigError(f"combine is 'any', 'all' or 'vote'; got {combine!r}")
        names = [w.name for w in watches]
        if len(set(names)) < len(names):
            raise ConfigError(f"every watch needs a name of its own; got {', '.join(names)}: set name")
        if jurors and not any(w.signal.jurors for w in watches):
            raise ConfigError(
                "jurors are heard by a watch with the signal 'jury', as the preset 'auto' has; there is none"
            )
        if paired and len(set(jurors)) < FEWEST:
            raise ConfigError(
                f"paired sends each juror one of two models and needs {FEWEST} jurors or more; "
                f"got {len(set(jurors))}: name them in jurors"
            )
        watches = [replace(w, optional=False) if jurors and w.signal.jurors else w for w in watches]
        self.waiting = tuple(w for w in watches if w.optional)
        self.guard = Guard(
            tuple(w for w in watches if not w.optional), component("policy", policy), admission or Admission(), combine,
            share_copies, quorum, shorten, joint, newcomers, frozenset(map(str, trusted)), frozenset(map(str, jurors)),
            paired, randbits(62) if secret is None else int(secret), None if standing is None else str(standing),
        )  # fmt: skip
        self.aggregator: CompleteAggregator = component("aggregator", aggregator)
        self.trial: Trial | None = None
        self.backdoors, self.cleaner = bool(backdoors), cast(Cleaner | None, None)
        self.recent: tuple[RoundRecord, ...] = ()
        self.reset()

    def reset(self) -> None:
        """Forget all rounds."""
        self.memory: Memory = self.guard.blank()
        self.carried: State = self.aggregator.init()
        self.shift = torch.zeros(0)
        self.triggers: Triggers | None = None

    @classmethod
    def preset(cls, name: str, **options: object) -> Warden:
        """A ready-made warden: ``auto``, ``pid-made``, or any other registered preset.

        What is a warden's and no option of the preset, such as a policy, takes the place of the preset's own.

        >>> Warden.preset("auto", policy="observe").policy
        Observe()
        """
        if not isinstance(name, str):
            raise ConfigError(f"the name of a preset comes first, as in Warden.preset('auto'); got {name!r:.60}")
        others = {*GUARD, "aggregator", "backdoors"} - {"watches", *parameters(lookup("preset", name))}
        parts = {key: value for key, value in options.items() if key in others}
        warden: Warden = make("preset", name, **{key: value for key, value in options.items() if key not in others})
        returned(isinstance(warden, cls), f"the preset {name!r} returns a fedwarden.Warden", warden)
        return warden.but(**parts) if parts else warden

    def but(self, **parts: Any) -> Warden:
        """A fresh warden that is made as this one, but for these parts."""
        own = {key: getattr(self.guard, key) for key in GUARD}
        own |= {"aggregator": self.aggregator, "backdoors": self.backdoors}
        return type(self)(**{**own, "watches": (*self.watches, *self.waiting), **parts})

    def of_products(self) -> Warden:
        """The same for updates in the coordinates of adapters: these change by round, and a single one means nothing.

        Watches that look at single weights are left out. What keeps a vector from round to round is refused.
        """
        aggregator = describe(self.aggregator)["name"]
        faults = {
            "paired adds a vector to the model": self.guard.paired,
            f"{aggregator} carries vectors from round to round": self.aggregator.carries,
            "the warden was lent a server's model": self.trial is not None,
        }
        for fault, found in faults.items():
            if found:
                raise ConfigError(f"{fault}, and with adapters there are only coordinates of products: leave one out")
        return self.but(watches=[w for w in (*self.watches, *self.waiting) if w.action != "contain"])

    @property
    def watches(self) -> tuple[Watch, ...]:
        return self.guard.watches

    @property
    def policy(self) -> CompletePolicy:
        return self.guard.policy

    @property
    def admission(self) -> Admission:
        return self.guard.admission

    @admission.setter
    def admission(self, limits: Admission) -> None:
        self.guard = replace(self.guard, admission=limits)

    @property
    def excluded(self) -> tuple[str, ...]:
        """The clients that are excluded now."""
        return tuple(self.memory.excluded)

    @property
    def suspended(self) -> tuple[str, ...]:
        """The clients that are out of the model for a bounded number of rounds."""
        return self.memory.suspended

    def equip(self, server: Server) -> Warden:
        """Give signals and aggregator what they need of the server, before the first round; returns this warden.

        Optional watches for which the server has nothing go on waiting for one that has, or for jurors.
        """
        ready, left = [], []
        for watch in self.waiting:
            if watch.signal.jurors:
                left.append(watch)
                continue
            try:
                ready.append(replace(watch, signal=watch.signal.equip(server), optional=False))
            except ConfigError:
                left.append(watch)
        watches = [replace(w, signal=w.signal.equip(server)) for w in self.watches]
        self.guard, self.waiting = replace(self.guard, watches=(*watches, *ready)), tuple(left)
        self.aggregator = self.aggregator.equip(server)
        self.trial = Trial.of(server)
        self.cleaner = Cleaner.of(server) if self.backdoors else None
        self.reset()
        return self

    def include(self, names: Collection[str]) -> Warden:
        """Take in the optional watches of these names without a server, to judge recorded signals; returns itself."""
        known = tuple(replace(w, optional=False) for w in self.waiting if w.name in names)
        self.guard, self.waiting = replace(self.guard, watches=(*self.watches, *known)), ()
        self.reset()
        return self

    def asks(self, client_id: str, word: Word = NO_WORD) -> bool:
        """Whether this client should be asked for an update in the next round, at the start of which this is the word.

        >>> Warden().asks("a"), Warden().asks("a", Word(excluded=frozenset("a")))
        (True, False)
        """
        client, excluded = str(client_id), self.memory.excluded
        if word != NO_WORD or self.guard.trusted:  # asked of each of thousands of clients, most often without any
            word = heard(word, self.guard)
            excluded = exclusions(word, excluded)
        return client not in word.excluded and self.policy.asks(client, excluded)

    def sent(self, client_id: str, params: torch.Tensor) -> torch.Tensor:
        """The model that this client is to be sent next, (d,); ``params`` for all but half of the jurors if ``paired``.

        ``params`` is the global model. A client's update is relative to the model that it was sent.
        """
        return params + self.shift.to(params) if str(client_id) in self.apart else params

    @property
    def apart(self) -> tuple[str, ...]:
        """The jurors that are to be sent another model than the global one."""
        pair = self.memory.hearings.pair
        return pair.apart if pair and len(self.shift) else ()

    def keep_secret(self, secret: int | None) -> None:
        """Go on with the secret of a recorded run, if it has one."""
        if secret is not None:
            self.guard = replace(self.guard, secret=int(secret))

    def heed(self, word: Word) -> None:
        """Obey the operator in a round in which nothing is decided."""
        self.memory = obey(heard(word, self.guard), self.memory)

    def receive(
        self,
        replies: Sequence[Reply],
        params: Sequence[torch.Tensor],
        round: int,
        measured: Sequence[tuple[int, int]] | None = None,
    ) -> Outcome:
        """One round from raw replies of whole models: what does not fit the global model is rejected first."""
        if self.guard.paired:
            raise ConfigError("paired sends clients two models, and receive knows one: call step, see Warden.sent")
        cohort, rejected = admit(replies, params, round, measured)
        return self.step(cohort, rejected)

    def step(self, cohort: Cohort, rejected: Sequence[Rejection] = (), word: Word = NO_WORD) -> Outcome:
        """One round: decide, combine what is left, and unlearn backdoors that the new model has learned.

        ``word`` is what the operator has said by the start of the round.
        """
        outcome = self.combine(self.decide(cohort, rejected, word))
        if cohort.params is None:
            return outcome
        params = cohort.params.to(outcome.update)
        cleaned, notes = self.cleanse(params + outcome.update, cohort.round)
        if cleaned is None:
            return outcome
        record = replace(outcome.record, notes=(*outcome.record.notes, *notes))
        return Outcome(cleaned - params, self.remember(record))

    def cleanse(self, params: torch.Tensor, round: int) -> tuple[torch.Tensor | None, list[Note]]:
        """A new model without the triggers that were found, and notes of those found now; None if there are none."""
        if self.cleaner is None:
            return None, []
        cleaned, self.triggers, removed = self.cleaner.clean(params, self.triggers, round)
        return (cleaned if self.triggers else None), [each.note for each in removed]

    def decide(self, cohort: Cohort, rejected: Sequence[Rejection] = (), word: Word = NO_WORD) -> Decision:
        """What becomes of a cohort; the warden remembers it, and combines nothing."""
        if self.cleaner and self.triggers and len(cohort) and cohort.params is not None:
            gains, self.triggers = self.cleaner.gains(cohort, self.triggers)
            gained = {TRIGGER: dict(zip(cohort.client_ids, map(float, gains), strict=True))}
            cohort = replace(cohort, reported=joined(cohort.reported, gained))
        self.memory, decision = self._decided(cohort, rejected, word)
        self.shift = decision.shift if len(decision.index) else self.shift
        return decision

    def combine(self, decision: Decision) -> Outcome:
        """The update that the aggregator makes of what was decided, if it makes a model that works."""
        self.carried, outcome = self._combined(decision)
        self.remember(outcome.record)
        return outcome

    def foresee(self, cohort: Cohort, word: Word = NO_WORD) -> tuple[Decision, Outcome]:
        """What :meth:`step` would make of a cohort, which the warden does not remember."""
        _, decision = self._decided(cohort, (), word)
        return decision, self._combined(decision)[1]

    def remember(self, record: RoundRecord) -> RoundRecord:
        """Keep a round to look at, in place of what was kept of it and of later ones; returns it."""
        earlier = (r for r in self.recent if r.round < record.round)
        self.recent = (*earlier, record)[-RECENT:]
        return record

    def remembered(self) -> dict[str, Any]:
        """All that is remembered, as it stands; :class:`.Recorder` writes what a round has changed of it."""
        m = self.memory
        return {
            "histories": list(m.histories),
            "tests": list(m.tests),
            "excluded": dict(m.excluded),
            "aggregator": dict(self.carried),
            "doubted": sorted(m.doubted),
            "seen": m.seen,
            "hearings": {"turns": dict(m.hearings.turns), "past": list(m.hearings.past)},
            "paired": {**asdict(m.hearings.pair), "shift": self.shift} if m.hearings.pair else {},
            "held": dict(m.hearings.held),
            "population": asdict(m.population),
            "triggers": vars(self.triggers) if self.triggers else {},
            "secret": self.guard.secret,
        }

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered, as plain numbers and tensors."""
        found = self.remembered()
        return {**found, "histories": [dict(h) for h in found["histories"]], "seen": dict(found["seen"])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another warden of the same configuration stood."""
        if missing := [key for key in self.remembered() if key not in {*state, "triggers"}]:
            raise ConfigError(f"expected what a warden's state_dict() gives; the state has no {listed(missing)}")
        many = [len(state[key]) for key in ("histories", "tests")]
        if many != [len(self.watches)] * 2:
            raise ConfigError(f"this warden has {len(self.watches)} watches; the state has {min(many)}")
        if not isinstance(state["excluded"], Mapping):
            raise ConfigError(f"excluded is a table by client; got {state['excluded']!r:.60}")
        paired = dict(state["paired"])
        self.shift = paired.pop("shift", torch.zeros(0))
        self.memory = Memory(
            tuple(state["histories"]),
            tuple(state["tests"]),
            state["excluded"],
            frozenset(state["doubted"]),
            state["seen"],
            Hearings(
                state["hearings"]["turns"],
                tuple(state["hearings"]["past"]),
                Pair.load(paired) if paired else None,
                state["held"],
            ),
            Population(**state["population"]),
        )
        self.keep_secret(state["secret"])
        triggers = state.get("triggers")
        self.carried, self.triggers = state["aggregator"], Triggers(**triggers) if triggers else None

    def __repr__(self) -> str:
        names = ", ".join(w.name for w in self.watches)
        policy, aggregator = (describe(x)["name"] for x in (self.policy, self.aggregator))
        return f"Warden(watches=[{names}], policy={policy!r}, aggregator={aggregator!r})"

    @property
    def series(self) -> Series:
        """The last rounds that this warden judged, as arrays; they are for looking at and no part of its state."""
        return Series.of(self.recent)

    def plot(
        self, watch: str | None = None, client: str | None = None, scale: str = "limit", dark: bool = False
    ) -> Any:
        """The last rounds as a Plotly figure: the scores of a watch, the first by default, or one client."""
        return import_module("fedwarden.figures.guard").draw(Story.of(self.recent), watch, client, scale, dark)

    def _repr_html_(self) -> str:
        waiting = ", ".join(f"{w.name} (waits for {'jurors' if w.signal.jurors else 'a server'})" for w in self.waiting)
        told = {
            "watches": ", ".join(filter(None, [*(w.name for w in self.watches), waiting])) or "none",
            "policy": describe(self.policy)["name"],
            "aggregator": describe(self.aggregator)["name"],
            "last round": self.recent[-1].round if self.recent else "none yet",
            "excluded": ", ".join(self.excluded) or "none",
        }
        return facts(told, "Warden")

    def _decided(self, cohort: Cohort, rejected: Sequence[Rejection], word: Word) -> tuple[Memory, Decision]:
        if not isinstance(cohort, Cohort):
            what = "Cohort(round, client_ids, Updates.of(rows), num_examples)"
            raise TypeError(f"a warden judges a {what}; got {type(cohort).__name__}")
        return decide(self.guard, self.memory, cohort, rejected, self.aggregator.pairs, word)

    def _combined(self, decision: Decision) -> tuple[State, Outcome]:
        """What the aggregator will carry on, and the round."""
        notes: list[Note] = []
        carried, aggregate = self._aggregate(decision, notes)
        weights = decision.weights if aggregate.weights is None else aggregate.weights
        update = self._install(aggregate.update, decision.came.params, notes)
        return carried, Outcome(update, decision.record(weights, notes))

    def _aggregate(self, decision: Decision, notes: list[Note]) -> tuple[State, Aggregate]:
        cohort, kept = decision.cohort, decision.kept
        if not kept.any():
            return self.carried, _nothing(decision)
        cohort = replace(cohort, updates=decision.rows)
        try:
            stepped = self.aggregator.step(self.carried, cohort, decision.weights)
        except ValueError as error:
            notes.append(Note.of("aggregator_failed", updates=int(kept.sum()), error=str(error)))
            return self.carried, _nothing(decision)
        fits = isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], Aggregate)
        returned(fits, "the step of an aggregator returns (state, fedwarden.Aggregate)", stepped)
        carried, made = stepped
        agreed = decision.buffers
        made = replace(made, update=made.update.clone()) if len(agreed) else made  # others may hold it too
        for a, b in cohort.updates.buffers if len(agreed) else ():
            made.update[a:b], agreed = agreed[: b - a], agreed[b - a :]
        return carried, made

    def _install(self, update: torch.Tensor, params: torch.Tensor | None, notes: list[Note]) -> torch.Tensor:
        """The update, unless the model that it makes gives no numbers where the last one does."""
        if self.trial is None or params is None:
            return update
        params, layout = params.to(update), self.trial.layout
        new = params + update
        found = examine(new, layout.names, layout.sizes, params, self.trial)
        if found.negative:
            notes.append(Note.of("variance_floored"))
        if found.fault:
            notes.append(Note.of("no_finite_output"))
            return torch.zeros_like(update)
        return torch.where(found.params == new, update, found.params - params) if found.negative else update


def _nothing(decision: Decision) -> Aggregate:
    """An update of zeros, of nobody."""
    updates = decision.came.updates
    zeros = torch.zeros(updates.d, dtype=updates.dtype, device=updates.device)
    return Aggregate(zeros, np.zeros(len(decision.cohort)))
