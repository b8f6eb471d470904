"""A warden that is given sums of groups only, and remembers its verdicts by member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.stats import among
from ..core.types import NO_WORD, Cohort, Outcome, Rejection, RoundRecord, Word
from ..core.words import listed
from .decide import Decision
from .groups import Evidence, Group, Groups, group_means, group_name
from .judge import Guard, Memory
from .warden import Warden
from .word import heard


class Grouped:
    """A warden over groups of clients, to stand in for one over clients where their updates are hidden.

    Its cohorts are of clients; what :func:`group_means` makes of them is all that the warden inside gets. With groups
    of one client each nothing is hidden, and the warden inside decides alone.
    """

    def __init__(self, warden: Warden, groups: Groups) -> None:
        self.warden, self.groups, self.evidence = warden, groups, Evidence()
        if groups.size > 1:
            check_no_jurors(warden.guard)
            warden.admission = replace(warden.admission, known=None)  # groups are no clients

    @property
    def guard(self) -> Guard:
        return self.warden.guard

    @property
    def memory(self) -> Memory:
        return self.warden.memory

    @property
    def apart(self) -> tuple[str, ...]:
        """The clients that are sent another model: none where sums alone are seen, which have no jurors."""
        return self.warden.apart if self.groups.size == 1 else ()

    def sent(self, client_id: str, params: Tensor) -> Tensor:
        """The model that this client is to be sent next."""
        return self.warden.sent(client_id, params)

    @property
    def excluded(self) -> tuple[str, ...]:
        """The clients that are excluded now."""
        return self.warden.excluded if self.groups.size == 1 else self.evidence.excluded

    def asks(self, client_id: str, word: Word = NO_WORD) -> bool:
        """Whether this client should be asked for an update in the next round."""
        if self.groups.size == 1:
            return self.warden.asks(client_id, word)
        return str(client_id) not in {*word.excluded, *self.evidence.obeying(self._joined(word)).excluded}

    def step(self, cohort: Cohort, rejected: Sequence[Rejection] = (), word: Word = NO_WORD) -> Outcome:
        """One round: sum within groups, let the warden judge and combine these, and learn of the members."""
        if self.groups.size == 1:
            return self.warden.step(cohort, rejected, word)
        word = self._joined(word)
        groups = self._form(cohort, word)
        outcome = self.warden.step(group_means(cohort, groups), rejected, of_groups(word))
        self.warden.memory = forget(self.warden.guard, self.warden.memory)
        before = self.evidence.obeying(word)
        self.evidence = self.groups.step(before, flags_of(groups, outcome.record, word.observing), word)
        record = by_member(outcome.record, groups, cohort.client_ids, before, self.evidence, word)
        return replace(outcome, record=record)

    def foresee(self, cohort: Cohort, word: Word = NO_WORD) -> tuple[Decision, Outcome]:
        """What :meth:`step` would make of groups, which the warden does not remember."""
        return self.warden.foresee(group_means(cohort, self._form(cohort, word)), of_groups(word))

    def _form(self, cohort: Cohort, word: Word) -> tuple[Group, ...]:
        return self.groups.form([c for c in cohort.client_ids if c not in word.excluded], cohort.round)

    def _joined(self, word: Word) -> Word:
        return heard(word, self.warden.guard)

    def remembered(self) -> dict[str, Any]:
        """All that is remembered, as it stands."""
        return {**self.warden.remembered(), "groups": self.evidence.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another one of the same configuration stood."""
        self.warden.load_state_dict(state)
        self.evidence = Evidence.load(state["groups"])


def check_no_jurors(guard: Guard) -> None:
    """Raise where a guard over groups names jurors."""
    if guard.jurors:
        raise ConfigError(
            f"jurors report one by one, and a group hides its members' reports: got {listed(sorted(guard.jurors))}; "
            "leave guard.jurors out, or guard single clients"
        )


def forget(guard: Guard, memory: Memory) -> Memory:
    """What a guard keeps of a round whose groups are gone: nothing by name."""
    return replace(guard.blank(), tests=memory.tests)


def of_groups(word: Word) -> Word:
    """What a word says of groups, which are no clients: whether watches act."""
    return Word(observing=word.observing)


def flags_of(groups: Sequence[Group], record: RoundRecord, observing: bool = False) -> dict[Group, bool]:
    """Whether each group that was judged was left out, on trial, or would have been left out.

    A group whose sum did not come is not in it.
    """
    refused = {r.client_id for r in record.rejected if r.reason.kind != "no_answer"}
    judged = dict.fromkeys(refused, True)
    if record.client_ids:
        above = np.any([record.flagged, *(w.flagged for w in record.watches)], axis=0)
        tried = {name for note in record.notes if note.kind == "on_trial" for name in note.clients}
        above &= observing | (record.weights == 0) | among(tried, record.client_ids)
        judged = {**dict(zip(record.client_ids, above.tolist(), strict=True)), **judged}
    return {group: judged[group_name(group)] for group in groups if group_name(group) in judged}


def by_member(
    record: RoundRecord,
    groups: Sequence[Group],
    client_ids: Sequence[str],
    before: Evidence,
    after: Evidence,
    word: Word = NO_WORD,
) -> RoundRecord:
    """The record of a round of groups as one of clients: each has its group's scores and its part of the weight."""
    row = {name: i for i, name in enumerate(record.client_ids)}
    came = [group for group in groups if group_name(group) in row]  # in any order, and some may have no sum
    place = {client: row[group_name(group)] for group in came for client in group}
    size = {client: len(group) for group in came for client in group}
    clients = tuple(c for c in client_ids if c in place)
    index, sizes = np.array([place[c] for c in clients], dtype=int), np.array([size[c] for c in clients])
    new = [c for c in after.excluded if c not in before.excluded]
    out = sum(
        len(group) for group in groups if group_name(group) not in row or not record.weights[row[group_name(group)]]
    )
    return replace(
        record,
        client_ids=clients,
        num_examples=record.num_examples[index] / sizes,
        weights=record.weights[index] / sizes,
        watches=tuple(
            replace(
                w,
                signal=w.signal[index],
                scores=w.scores[index],
                flagged=w.flagged[index],
                parts={name: part[index] for name, part in w.parts.items()},
            )
            for w in record.watches
        ),
        flagged=np.isin(clients, new),
        excluded=(*after.excluded, *sorted(word.excluded.difference(after.excluded))),
        suspended=(),
        rejected=tuple(Rejection(c, r.reason) for r in record.rejected for c in _members(r.client_id, groups)),
        notes=(*record.notes, *(Note.of("groups_prove", client) for client in new)),
        metrics={**record.metrics, "groups": float(len(groups)), "lost_with_group": float(out)},
        reported={
            name: {client: value for group, value in values.items() for client in _members(group, groups)}
            for name, values in record.reported.items()
        },
    )


def _members(name: str, groups: Sequence[Group]) -> Group:
    return next((group for group in groups if group_name(group) == name), (name,))
