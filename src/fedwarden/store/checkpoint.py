"""A run's state on disk: tensors in safetensors, everything else as JSON in one more tensor; written atomically.

The header holds a SHA-256 of the whole file, taken with zeros in its own place, so that no changed byte goes unnoticed.
What is remembered of clients is beside it in a file of rows, to which each checkpoint adds those that have changed. The
last two checkpoints of a run are kept, so that the other continues it where the newer is damaged, and some older ones.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import FedwardenError
from ..core.notes import Note
from ..core.remembered import Remembered

T = TypeVar("T")
Tables = dict[str, tuple[Mapping[str, bytes], ...]]
Place = tuple[str, int, str]
"""A file of rows, how many of its bytes count, and their SHA-256."""

TENSOR, ROWS, TREE = "__tensor__", "__rows__", "tree"
SUM = "sha256:"
BLANK = "0" * 64
CHUNK = 1 << 22
DRAFT = "*.draft"
LARGE = 1 << 24  # bytes of rows before old ones are dropped from their file, once these are three quarters of it


class CheckpointError(FedwardenError):
    """A checkpoint that cannot be read."""


def checkpoint_path(folder: Path, run: int, round: int) -> Path:
    return folder / "checkpoints" / str(run) / f"round-{round:06d}.safetensors"


def saved(folder: Path, run: int, kind: str = "safetensors") -> dict[int, Path]:
    """The checkpoints of a run by round, the newest first."""
    found = {}
    for path in checkpoint_path(folder, run, 0).parent.glob(f"round-*.{kind}"):
        number = path.stem.removeprefix("round-")
        if number.isdecimal():
            found[int(number)] = path
    return dict(sorted(found.items(), reverse=True))


def lasting(rounds: Sequence[int]) -> list[int]:
    """The checkpoints that stay, of those of these rounds, newest first; the start of the run counts as round 0.

    One goes where the next older one is no further from the next newer one than that is from the newest. Then going
    back by k rounds loses at most k more, and the way back doubles within two checkpoints: at most 2 log2 T + 1 stay.

    >>> kept = []
    >>> for t in range(1, 101):
    ...     kept = lasting([t, *kept])
    >>> kept
    [100, 99, 98, 96, 92, 88, 80, 64, 32]
    """
    kept = [*rounds[:1]]
    for here, older in pairwise([*rounds[1:], 0]):
        if kept[-1] - older > rounds[0] - kept[-1]:
            kept.append(here)
    return kept


def forget(folder: Path, run: int, round: int) -> None:
    """Remove checkpoints up to a round that is committed, but for the lasting ones, and rows that none of those has."""
    done = {t: path for t, path in saved(folder, run).items() if t <= round}
    kept, rows = lasting([*done]), saved(folder, run, "rows")
    held = {max((t for t in rows if t <= mine), default=0) for mine in kept or [round]}
    gone = [t for t in rows if t <= max(kept, default=round) and t not in held]
    for path in [*(done[t] for t in done.keys() - kept), *(rows[t] for t in gone)]:
        path.unlink(missing_ok=True)


def clear_drafts(folder: Path, run: int) -> None:
    """Remove what a killed process left half written."""
    for draft in checkpoint_path(folder, run, 0).parent.glob(DRAFT):
        draft.unlink(missing_ok=True)


def newest(
    folder: Path, run: int, name: str, last: int, use: Callable[[Any, int], T]
) -> tuple[T | None, tuple[Note, ...]]:
    """What ``use`` makes of a run's newest sound checkpoint up to a round, and a note of each that was passed over.

    None where there is no checkpoint; where there are some and none can be used, that is an error.
    """
    faults: list[str] = []
    for t, path in saved(folder, run).items():
        if t > last:
            continue
        try:
            state = load(path, name)
        except CheckpointError as error:
            faults.append(str(error))
            continue
        try:
            made = use(state, t)
        except (FedwardenError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            faults.append(f"{path} does not fit this run: {error}")
            continue
        return made, tuple(Note.of("checkpoint_passed_over", fault=fault, round=t) for fault in faults)
    if faults:
        where = checkpoint_path(folder, run, 0).parent
        raise CheckpointError(
            f"no checkpoint of run {run} can be used: {'; '.join(faults)}; "
            f"to play the run again from its first round, move {where} away"
        )
    return None, ()


class Rows:
    """The rows of clients that a run's checkpoints share: a file that grows by what changes, and is begun anew."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.begun = self.size = 0
        self.sum = hashlib.sha256()
        self.last: dict[str, Remembered] = {}

    def add(self, found: Mapping[str, Remembered], fresh: Path) -> Place:
        """Write what has changed of these since they were last written, or all of them to a ``fresh`` file."""
        path, size, total = self.path, self.size, self.sum.copy()
        changes = {key: state.changes(self.last.get(key, Remembered())) for key, state in found.items() if path}
        tables: Tables = {key: (rows,) for key, rows in changes.items() if rows}
        if path is None or None in changes.values() or size > max(LARGE, 4 * self.begun) or not path.is_file():
            path, size, total = fresh, 0, hashlib.sha256()
            path.unlink(missing_ok=True)
            tables = {key: state.recent for key, state in found.items()}
            tables |= {f"older {key}": state.older for key, state in found.items()}
        frame = framed(tables)
        with open(path, "r+b" if size else "xb") as file:
            file.seek(size)
            file.write(frame)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        total.update(frame)
        self.begun = self.begun if size else len(frame)
        self.path, self.size, self.sum, self.last = path, size + len(frame), total, {**self.last, **found}
        return path.name, self.size, total.hexdigest()


def framed(tables: Tables) -> bytes:
    """Tables of rows as bytes: a line of JSON with clients and lengths of rows, one where all are equal; the rows."""
    head, every = {}, list[bytes]()
    for key, parts in tables.items():
        rows = [*chain.from_iterable(part.values() for part in parts)]
        lengths = [*map(len, rows)]
        head[key] = [[*chain.from_iterable(parts)], lengths if len({*lengths}) > 1 else lengths[:1]]
        every += rows
    return b"".join([json.dumps(head).encode(), b"\n", *every])


def read_rows(folder: Path, place: Place) -> dict[str, Remembered]:
    """The rows that :class:`Rows` wrote, as far as a checkpoint knows them."""
    name, size, total = place
    path = regular(folder / Path(name).name)
    with open(path, "rb") as file:
        data = file.read(size)
    if len(data) < size or hashlib.sha256(data).hexdigest() != total:
        raise CheckpointError(f"the bytes of {path.name} have changed since it was written")
    tables, frames = dict[str, dict[str, bytes]](), BytesIO(data)
    while head := frames.readline():
        for key, (clients, lengths) in json.loads(head).items():
            each = lengths * len(clients) if len(lengths) == 1 else lengths
            rows = ((client, frames.read(length)) for client, length in zip(clients, each, strict=True))
            tables.setdefault(key, {}).update(rows)
    none: dict[str, bytes] = {}
    return {key: Remembered.joined(rows, tables.get(f"older {key}", none)) for key, rows in tables.items()}


def regular(path: Path) -> Path:
    """A path, if it is that of a regular file; others may block, or be somewhere else."""
    if not path.is_file() or path.is_symlink():
        raise CheckpointError(f"{path.name} is no regular file" if path.exists() else f"{path.name} is missing")
    return path


def save(path: Path, tree: object, run: str = "", rows: Rows | None = None) -> None:
    """Write nested dicts, lists, numbers, strings and tensors; after a crash the old file or the new one is there.

    ``run`` names the run, and ``rows`` is what its checkpoints share.
    """
    tensors: dict[str, Tensor] = {}
    found: dict[str, Remembered] = {}
    text = json.dumps(_pack(tree, tensors, found, ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        place = (rows or Rows()).add(found, path.with_suffix(".rows")) if found else None
    except OSError as error:
        raise CheckpointError(f"cannot write the checkpoint {path}: {error}") from error
    whole = f"{json.dumps([run, place])}\n{text}".encode()
    tensors[TREE] = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
    seen = set[int]()
    for name, tensor in tensors.items():  # safetensors takes none that share memory
        memory = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        save_file(tensors, draft, metadata={"sum": f"{SUM}{BLANK}"})
    except SafetensorError as error:
        draft.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write the checkpoint {path}: {error}") from error
    with open(draft, "r+b") as file:
        start, total = _place(draft), _sum(draft)
        file.seek(start)
        file.write(total.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path, run: str | None = None) -> Any:
    """Read what :func:`save` wrote, bit for bit; of the run of this name, or of any."""
    try:
        with safe_open(regular(path), framework="pt") as file:
            if not (given := (file.metadata() or {}).get("sum", "")):
                raise CheckpointError("it has no checksum")
            if given != SUM + _sum(path):
                raise CheckpointError("its bytes have changed since it was written")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head, _, text = tensors[TREE].numpy().tobytes().partition(b"\n")
        of, place = json.loads(head)
        if run is not None and of != run:
            raise CheckpointError(f"it is of another run: {of!a} and not {run!a}")
        return _unpack(json.loads(text), tensors, read_rows(path.parent, place) if place else {})
    except Exception as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error}") from error


def _place(path: Path) -> int:
    """Where in the file the digits of the checksum are."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return 8 + file.read(size).index(SUM.encode()) + len(SUM)


def _sum(path: Path) -> str:
    """The SHA-256 of a file with zeros in the place of its checksum."""
    place, found = _place(path), hashlib.sha256()
    with open(path, "rb") as file:
        found.update(file.read(place) + BLANK.encode())
        file.seek(len(BLANK), os.SEEK_CUR)
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _pack(value: Any, tensors: dict[str, Tensor], found: dict[str, Remembered], where: str) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous()
        return {TENSOR: name}
    if isinstance(value, Remembered):
        found[where] = value
        return {ROWS: where}
    if isinstance(value, dict):
        return {str(k): _pack(v, tensors, found, f"{where}/{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(v, tensors, found, f"{where}/{i}") for i, v in enumerate(value)]
    return value


def _unpack(value: Any, tensors: Mapping[str, Tensor], found: Mapping[str, Remembered]) -> Any:
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        if ROWS in value:
            return found.get(value[ROWS], Remembered())
        return {k: _unpack(v, tensors, found) for k, v in value.items()}
    return [_unpack(v, tensors, found) for v in value] if isinstance(value, list) else value
