"""A Flower run on disk: every round in the ledger, and a checkpoint from which a killed server continues."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from ..core.registry import describe
from ..core.types import RoundRecord
from ..core.words import listed
from ..guard.warden import Warden
from ..sim.federation import versions
from ..sinks.feed import Feed, Live
from ..store import checkpoint
from ..store.checkpoint import CheckpointError, checkpoint_path
from ..store.claim import claim
from ..store.ledger import Ledger
from .arrays import view
from .records import Template

LOG = logging.getLogger("flwr")  # beside Flower's own lines
ENGINE = "flower"
CHANGING = ("clipping_norm",)  # the numbers that a strategy changes as it goes; all else that changes are arrays
NUMBERS = (np.ndarray, np.generic)  # sums of arrays without dimensions are scalars


class Journal:
    """One run of the ledger, open for appending; ``state`` is that of the last committed round, if it continues.

    Only a run of the same experiment is continued. ``passed_over`` tells of the latest one that was not, and why.
    """

    def __init__(
        self,
        home: Path | None,
        name: str,
        config: Mapping[str, Any],
        resume: bool = False,
        engine: str = ENGINE,
        sinks: Sequence[Any] = (),
    ) -> None:
        self.live = Live(Feed.of(sink) for sink in sinks)
        self.ledger = Ledger(home)
        self.held = ExitStack()
        self.state: dict[str, Any] | None = None
        self.passed_over = ""
        mine = [r for r in self.ledger.runs() if r.engine == engine and r.name == name] if resume else []
        unfinished = [r for r in mine if r.state != "done"]
        same = next((r for r in unfinished if not differences(r.config, config)), None)
        if same is None:
            own = {**versions(), "flwr": version("flwr")}
            self.run = self.ledger.start(name, engine, config, own)
            self.held.enter_context(claim(self.ledger.folder, self.run))
            if unfinished:
                what = listed(differences(unfinished[0].config, config))
                self.passed_over = (
                    f"run {unfinished[0].id} ({name}) is not continued, since it differs in {what}; "
                    f"run {self.run} starts at round 1: give another experiment another name"
                )
        else:
            self.run = same.id
            self.held.enter_context(claim(self.ledger.folder, self.run))
            self.ledger.reopen(self.run, config)
            self.state = self._newest()

    def commit(self, record: RoundRecord, state: Mapping[str, Any]) -> None:
        """Write a round: its checkpoint first, so that a committed round can always be continued from."""
        checkpoint.save(self._path(record.round), dict(state))
        self.ledger.append(self.run, record)
        checkpoint.forget(self.ledger.folder, self.run, record.round)

    def amend(self, record: RoundRecord) -> None:
        """Write the record of a committed round again, with what was learned of it since."""
        self.ledger.append(self.run, record)

    def send(self) -> list[str]:
        """Send committed rounds that will not be amended any more to the sinks; what is to be noted of it."""
        return self.live.send(self.ledger, self.run)

    def close(self, state: str, summary: Mapping[str, Any] | None = None) -> None:
        self.ledger.finish(self.run, state, summary)
        self.live.close(state)
        self.ledger.close()
        self.held.close()

    def _newest(self) -> dict[str, Any] | None:
        """The state of the newest sound checkpoint; one that was passed over is noted in the round it goes on from."""
        state, notes = checkpoint.newest(self.ledger.folder, self.run, self.ledger.last_round(self.run), _checked)
        if state is not None and notes:
            record = self.ledger.record(self.run, state["round"])
            self.ledger.append(self.run, replace(record, notes=(*record.notes, *notes)))
            for note in notes:
                LOG.warning("fedwarden: %s", note)
        return state

    def _path(self, round: int) -> Path:
        return checkpoint_path(self.ledger.folder, self.run, round)


def experiment(strategies: Sequence[str], warden: Warden, template: Template) -> dict[str, str]:
    """What must be the same for a run to be continued, each part in one word; the number of rounds may grow."""
    form = [(slot.name, slot.shape, slot.dtype.str) for slot in template.slots]
    guard = {k: v for k, v in options(warden.guard).items() if k not in ("watches", "policy", "admission")}
    return {
        "strategy": " of ".join(strategies),
        "watches": digest([options(watch) for watch in (*warden.watches, *warden.waiting)]),
        "policy": digest([warden.policy, guard]),
        "aggregator": digest(warden.aggregator),
        "admission": digest(options(warden.admission)),
        "model": digest([form, template.buffers]),
    }


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The parts of the experiment in which a recorded run differs from the one that starts."""
    then = recorded.get("experiment", {})
    return [part for part, value in now.get("experiment", {}).items() if then.get(part) != value]


def digest(value: Any) -> str:
    """A short text that differs where names, options or numbers do; what a server lent a component does not count."""

    def plain(part: Any) -> Any:
        return sorted(part) if isinstance(part, set | frozenset) else describe(part)

    return sha256(json.dumps(value, default=plain, sort_keys=True).encode()).hexdigest()[:16]


def options(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _checked(state: Any, round: int) -> dict[str, Any]:
    """A checkpoint, if it is one of that round."""
    if state["round"] != round or not {"model", "warden", "server"} <= set(state):
        raise CheckpointError(f"it is of round {state['round']!a}, not of round {round} of a server")
    found: dict[str, Any] = state
    return found


def pack_arrays(record: ArrayRecord) -> dict[str, Any]:
    """A record as names and tensors."""
    return {"names": list(record), "arrays": [_tensor(view(a)) for a in record.values()]}


def unpack_arrays(packed: Mapping[str, Any]) -> ArrayRecord:
    """The record again, bit for bit."""
    pairs = zip(packed["names"], packed["arrays"], strict=True)
    return ArrayRecord({name: Array(np.asarray(tensor.numpy())) for name, tensor in pairs})


def server_state(strategy: Strategy) -> dict[str, Any]:
    """The arrays that a strategy keeps between rounds, such as momenta, by attribute; wrapped strategies inside."""
    state: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            state[name] = {"strategy": server_state(value)}
        elif isinstance(value, ArrayRecord):
            state[name] = {"record": pack_arrays(value)}
        elif isinstance(value, list) and value and all(isinstance(v, NUMBERS) for v in value):
            state[name] = {"list": [_tensor(v) for v in value]}
        elif isinstance(value, dict) and value and all(isinstance(v, NUMBERS) for v in value.values()):
            state[name] = {"dict": {str(k): _tensor(v) for k, v in value.items()}}
        elif name in CHANGING:
            state[name] = {"number": float(value)}
    return state


def restore_server_state(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Put back what :func:`server_state` took."""
    for name, held in state.items():
        ((kind, value),) = held.items()
        if kind == "strategy":
            restore_server_state(getattr(strategy, name), value)
        elif kind == "record":
            setattr(strategy, name, unpack_arrays(value))
        elif kind == "list":
            setattr(strategy, name, [tensor.numpy() for tensor in value])
        elif kind == "dict":
            setattr(strategy, name, {key: tensor.numpy() for key, tensor in value.items()})
        else:
            setattr(strategy, name, value)


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
