"""The auditor as a mod of a ClientApp: what the shared model tells a node of the others; nothing leaves the node."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from ...audit.auditor import Auditor
from ...core.types import Observation
from ...core.words import printable
from ...store.ledger import Ledger
from ...store.recorder import versions
from ..records import is_training, round_of, view

ENGINE = "flower-audit"
KEY = "fedwarden.audit"  # the records in the node's context that hold what is remembered
TENSORS = ("target", "gradient")
LOG = logging.getLogger("flwr")

Build = Callable[[Context], Auditor]
Record = Callable[[Context, Sequence[Observation]], None]


def audit_mod(
    build: Build,
    record: Record | None = None,
    home: str | Path | None = None,
    arrays: str = "arrays",
    config: str = "config",
) -> Mod:
    """A mod that observes every round before the node trains in it.

    ``build`` makes the auditor from the node's context: its model, and a probe of the node's own samples. ``record``
    gets the observations of each round; by default they go to the ledger of the node's own workspace, ``home``. The
    model of a training message is the one at the end of the round before, which contains
    what this node sent in that round. What is remembered lives in the node's context, since a new process may answer
    each message. ``arrays`` and ``config`` are the keys of the strategy's records. An audit that fails is logged and
    never disturbs the training.
    """
    keep = record or partial(to_ledger, None if home is None else Path(home))

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not is_training(message):
            return call_next(message, context)
        t = round_of(message, config)
        try:
            if t > 1:  # before the first round the model is nobody's
                _observe(build(context), message.content.array_records[arrays], t - 1, context, keep)
        except Exception as error:
            LOG.warning("fedwarden: the audit of round %d failed: %s", t - 1, printable(str(error)))
        reply = call_next(message, context)
        if reply.has_content():
            sent = reply.content.array_records.get(arrays)
            if sent is not None:
                context.state[f"{KEY}.own"] = ArrayRecord(dict(sent))
                context.state[f"{KEY}.sent"] = ConfigRecord({"round": t})
        return reply

    return mod


def _observe(auditor: Auditor, arrays: ArrayRecord, t: int, context: Context, record: Record) -> None:
    """One observation of the model at the end of round t, with what was remembered and for what comes."""
    remembered = load(context)
    if remembered is not None:
        if remembered["round"] >= t:  # the server has started again and repeats a round
            return
        auditor.load_state_dict(remembered)
    sent = context.state.config_records.get(f"{KEY}.sent")
    took_part = sent is not None and sent["round"] == t
    own = _state(context.state.array_records[f"{KEY}.own"]) if took_part else None
    record(context, auditor.observe(t, _state(arrays), own))
    save(auditor, context)


def to_ledger(home: Path | None, context: Context, observations: Sequence[Observation]) -> None:
    """Append a round's observations to the node's own ledger, in one run for each run of Flower."""
    config = {"flower_run": str(context.run_id)}
    with Ledger(home) as ledger:
        found = [r.id for r in ledger.runs() if r.engine == ENGINE and r.config == config]
        run = found[-1] if found else ledger.start("audit", ENGINE, config, versions())
        ledger.observe(run, observations, str(context.node_id))


def save(auditor: Auditor, context: Context) -> None:
    """Put what an auditor remembers into a node's context: tensors as arrays, all else as text."""
    state = auditor.state_dict()
    held = {name: state.pop(name) for name in TENSORS}
    context.state[KEY] = ArrayRecord({k: Array(v.cpu().numpy()) for k, v in held.items() if v is not None})
    context.state[f"{KEY}.memory"] = ConfigRecord({"json": json.dumps(state)})


def load(context: Context) -> dict[str, Any] | None:
    """What :func:`save` put there; None where nothing is."""
    if KEY not in context.state.array_records:
        return None
    arrays = _state(context.state.array_records[KEY])
    memory: dict[str, Any] = json.loads(str(context.state.config_records[f"{KEY}.memory"]["json"]))
    return {**memory, **{name: arrays.get(name) for name in TENSORS}}


def _state(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(view(array))) for name, array in record.items()}
