"""A Flower run on disk: every round in the ledger, and a checkpoint from which a killed server continues.

An attribute of a strategy is state where it has changed since the start of the server; what has not is an option, and a
resumed server keeps its own. Numbers, texts, bytes, arrays and tensors are carried, alone or in lists, tuples and
dicts. All else that has changed, such as an object with a memory of its own, is named.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from ..core.notes import Note
from ..core.types import RoundRecord
from ..core.words import printable
from ..guard import journal
from ..guard.arrays import row
from .records import view

LOG = logging.getLogger("flwr")  # beside Flower's own lines
ENGINE = "flower"
PARTS = ("model", "warden", "server")  # of a checkpoint
NUMBERS = (np.ndarray, np.generic)  # sums of arrays without dimensions are scalars
PLAIN = (bool, int, float, str, type(None))
DTYPES = frozenset(["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
MOST = 100_000  # parts of an attribute that are looked at; beyond them a change goes unseen

Prints = Mapping[str, object]
"""A fingerprint of each attribute of a strategy; of a strategy that it wraps, all of its fingerprints."""


class Journal(journal.Journal):
    """A server's run on disk, with what its strategy keeps between rounds."""

    def __init__(
        self,
        home: Path | None,
        name: str,
        config: Mapping[str, Any],
        strategy: Strategy,
        resume: bool = False,
        engine: str = ENGINE,
        sinks: Sequence[Any] = (),
    ) -> None:
        self.strategy, self.start = strategy, fingerprints(strategy)
        self.lost: list[str] = []  # attributes of the strategy that no checkpoint carries, each told of once
        super().__init__(home, name, engine, config, PARTS, warn, resume, sinks, {"flwr": version("flwr")})

    def keep(self, record: RoundRecord, model: Mapping[str, Any], guard: Mapping[str, Any]) -> RoundRecord:
        """Write a round with all that continues it; the record, with a note of what cannot be carried.

        ``guard`` are the states of the warden and of the names.
        """
        server, lost = server_state(self.strategy, self.start)
        if new := [name for name in lost if name not in self.lost]:
            self.lost += new
            note = Note.of("state_changed", names=tuple(new))
            warn(str(note))
            record = replace(record, notes=(*record.notes, note))
        state = {"round": record.round, "model": model, **guard, "server": server}
        self.recorder.commit(record, lambda: {**state, "lost": self.lost} if self.lost else state)
        return record

    def continued(self, state: Mapping[str, Any]) -> Sequence[Note]:
        """What a checkpoint lacks."""
        self.lost = list(state.get("lost", ()))
        return [Note.of("state_fresh", names=tuple(self.lost))] if self.lost else []


def warn(text: str) -> None:
    """One line beside Flower's own; names and words of clients cannot steer the terminal that shows it."""
    LOG.warning("fedwarden: %s", printable(text))


class Uncarried(TypeError):
    """A value that a checkpoint cannot carry."""


def fingerprints(strategy: Strategy) -> dict[str, object]:
    """What every attribute of a strategy is now, to be compared with later."""
    return {k: fingerprints(v) if isinstance(v, Strategy) else fingerprint(v) for k, v in vars(strategy).items()}


def server_state(strategy: Strategy, start: Prints) -> tuple[dict[str, object], list[str]]:
    """What a strategy keeps between rounds, by attribute, and the names of what has changed and cannot be carried."""
    state: dict[str, object] = {}
    lost = [name for name in start if name not in vars(strategy)]
    for name, value in vars(strategy).items():
        before = start.get(name)
        if isinstance(value, Strategy):
            inner, missing = server_state(value, before if isinstance(before, Mapping) else {})
            state[name] = {"strategy": inner}
            lost += [f"{name}.{part}" for part in missing]
            continue
        try:
            if _usual(value) or fingerprint(value) != before:
                state[name] = {"value": pack(value)}
        except (Uncarried, RecursionError):
            lost.append(name)
    return state, lost


def restore_server_state(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Put back what :func:`server_state` took."""
    for name, held in state.items():
        if "strategy" in held:
            restore_server_state(getattr(strategy, name), held["strategy"])
        else:
            setattr(strategy, name, unpack(held["value"]))


def _usual(value: Any) -> bool:
    """Whether it has a form in which Flower's own strategies keep momenta and models, which need no fingerprint."""
    parts = list(value.values()) if isinstance(value, dict) else value
    return isinstance(value, ArrayRecord) or (isinstance(parts, list) and all(isinstance(v, NUMBERS) for v in parts))


def pack(value: Any) -> object:
    """A value as plain numbers, texts and tensors, which :func:`unpack` turns into the same value again.

    >>> unpack(pack({3: (1.5, None), "name": [b"ab"]}))
    {3: (1.5, None), 'name': [b'ab']}
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in (list, tuple):
        return {kind.__name__: [pack(v) for v in value]}
    if kind is dict:
        return {"dict": [[pack(k), pack(v)] for k, v in value.items()]}
    if kind is bytes:
        return {"bytes": torch.from_numpy(np.frombuffer(value, np.uint8).copy())}
    if kind is Tensor and value.layout is torch.strided and value.device.type == "cpu":
        return {"tensor": _known(value.detach())}
    if kind is ArrayRecord:
        return {"record": pack_arrays(value)}
    if kind is np.ndarray or isinstance(value, np.generic):
        return {"array" if kind is np.ndarray else "scalar": _known(value)}
    raise Uncarried(f"a {kind.__qualname__} cannot be carried")


def unpack(packed: Any) -> Any:
    """What :func:`pack` was given."""
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = packed.items()
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(unpack(v) for v in value)
    if kind == "dict":
        return {unpack(k): unpack(v) for k, v in value}
    if kind == "record":
        return unpack_arrays(value)
    if kind == "bytes":
        return value.numpy().tobytes()
    return value if kind == "tensor" else value.numpy()[()] if kind == "scalar" else value.numpy()


def pack_arrays(record: ArrayRecord) -> dict[str, object]:
    """A record as names and tensors."""
    return {"names": list(record), "arrays": row([view(array) for array in record.values()])}


def unpack_arrays(packed: Mapping[str, Any]) -> ArrayRecord:
    """The record again, bit for bit."""
    pairs = zip(packed["names"], packed["arrays"], strict=True)
    return ArrayRecord({name: Array(np.asarray(tensor.numpy())) for name, tensor in pairs})


def fingerprint(value: object) -> str:
    """A text that differs where a value does, also where it was changed in place.

    Objects are taken apart as :mod:`copy` does it; one that cannot be copied is known by its identity alone.

    >>> memory = {"seen": [1, 2]}
    >>> before = fingerprint(memory)
    >>> memory["seen"].append(3)
    >>> fingerprint(memory) == before
    False
    """
    found, met = blake2b(), dict[int, object]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some iterators warn that they will not be taken apart for ever
            for token in islice(_tokens(value, met), MOST):
                found.update(len(token).to_bytes(8, "big"))
                found.update(token)
    except Exception:  # whatever a strategy keeps, and however it is made, looking at it may not end the run
        return f"{type(value).__qualname__} {id(value)}"
    return found.hexdigest()


def _tokens(value: Any, met: dict[int, object]) -> Iterator[bytes | memoryview]:
    """The bytes that make up a value; ``met`` holds what was seen already, so that a circle ends."""
    kind = type(value)
    yield kind.__qualname__.encode()
    if kind in PLAIN or kind is bytes:
        yield value if kind is bytes else repr(value).encode()
    elif id(value) in met:
        yield b"again"
    else:
        met[id(value)] = value  # held, so that nothing else gets its number
        yield from _inside(value, met)


def _inside(value: object, met: dict[int, object]) -> Iterator[bytes | memoryview]:
    if isinstance(value, NUMBERS) and not value.dtype.hasobject:
        yield f"{value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    elif isinstance(value, set | frozenset):
        yield from sorted(fingerprint(v).encode() for v in value)
    else:
        for part in _parts(value):
            yield from _tokens(part, met)


def _parts(value: Any) -> list[object]:
    """The values that another one consists of; its identity where it cannot be taken apart."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__code__")):
        return [id(value)]
    if type(value) in (list, tuple):
        return list(value)
    if type(value) is dict:
        return [part for pair in value.items() for part in pair]
    try:
        taken = value.__reduce_ex__(4)
    except Exception:
        return [id(value)]
    if isinstance(taken, str):  # a global, known by its name
        return [id(value)]
    _, args, *rest = taken
    return [args, *(list(part) if hasattr(part, "__next__") else part for part in rest)]


def _known(array: Any) -> Tensor:
    """An array or tensor of a dtype that every checkpoint can hold."""
    name = str(array.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Uncarried(f"numbers of dtype {name} cannot be carried")
    found: Tensor = array if isinstance(array, Tensor) else row([np.asarray(array, order="C")])[0]
    return found
