"""What a juror reports, as a mod of a ClientApp: the share of its own examples that the new model is worse on."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import ArrayLike

from ...core.words import printable
from ...guard.jury import worse
from ..records import is_training, round_of, view

KEY = "fedwarden.jury"  # the records in the node's context that hold the losses of the last models
METRIC, NOTHING = "worse", -1.0  # a number that is no share: all replies name the same metrics, in the first round too
LOG = logging.getLogger("flwr")

Losses = Callable[[ArrayRecord, Context], ArrayLike]


def jury_mod(losses: Losses, arrays: str = "arrays", config: str = "config") -> Mod:
    """A mod that adds the metric ``worse`` to what a node sends: the number by which jurors judge.

    ``losses`` gives the loss of some of the node's own training examples under the arrays of a model, always the same
    examples; 512 are enough. Before training, the global model's losses are compared with those of the last one that
    the node received, which stay in the node's context. In the first round, and where measuring fails, the metric
    is -1. All nodes use the mod, since a strategy asks for the same metrics of all; the server believes the jurors
    that it names. ``arrays`` and ``config`` are the keys of the strategy's records.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not is_training(message):
            return call_next(message, context)
        share = NOTHING
        try:
            now = np.array(losses(message.content.array_records[arrays], context), dtype=np.float64).reshape(-1)
            share = _compared(now, round_of(message, config), context)
        except Exception as error:
            LOG.warning("fedwarden: the juror's losses could not be measured: %s", printable(str(error)))
        reply = call_next(message, context)
        if reply.has_content():
            for metrics in reply.content.metric_records.values():
                metrics[METRIC] = share
        return reply

    return mod


def _compared(now: np.ndarray[tuple[int], np.dtype[np.float64]], t: int, context: Context) -> float:
    """The share of the losses that rose since the round before; a round that is asked again is compared as at first."""
    held = context.state.array_records.get(KEY, ArrayRecord())
    known = context.state.config_records.get(f"{KEY}.round", ConfigRecord({"round": 0}))
    again = int(str(known["round"])) >= t
    kept = {name: view(array) for name, array in held.items()}
    before = kept.get("before" if again else "now")
    context.state[KEY] = ArrayRecord(
        {"now": Array(now)} if before is None else {"before": Array(np.array(before)), "now": Array(now)}
    )
    context.state[f"{KEY}.round"] = ConfigRecord({"round": t})
    if before is None:
        return NOTHING
    if before.shape != now.shape:
        raise ValueError(f"expected the losses of the same {len(before)} examples as before; got {len(now)}")
    return worse(now, before)
