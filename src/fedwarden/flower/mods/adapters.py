"""A node whose adapters have a rank of their own."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from ...guard.adapters import at_rank
from ..records import view


def adapter_mod(rank: int, kind: str = "lora") -> Mod:
    """A mod that brings the adapters of every model that the node is sent to its own rank, the best approximation.

    >>> mods = [adapter_mod(rank=4)]  # of a ClientApp
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        records = message.content.array_records.items() if message.has_content() else ()
        for place, record in list(records):
            made = at_rank({name: view(array) for name, array in record.items()}, rank, kind)
            named = ArrayRecord({name: Array(array) for name, array in made.items()})
            message.content = RecordDict({**message.content, place: named})
        return call_next(message, context)

    return mod
