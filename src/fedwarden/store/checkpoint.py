"""A run's state on disk: tensors in safetensors, everything else as JSON in its header; written atomically.

The header begins with a SHA-256 of the whole file, taken with zeros in its own place, so that no changed byte goes
unnoticed. The last two checkpoints of a run are kept: where the newer one is damaged the other continues the run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import FedwardenError
from ..core.notes import Note

T = TypeVar("T")

TENSOR = "__tensor__"
SUM = "sha256:"
BLANK = "0" * 64
KEPT = 2  # checkpoints of a run
CHUNK = 1 << 22
DRAFT = "*.draft"


class CheckpointError(FedwardenError):
    """A checkpoint that cannot be read."""


def checkpoint_path(folder: Path, run: int, round: int) -> Path:
    return folder / "checkpoints" / str(run) / f"round-{round:06d}.safetensors"


def saved(folder: Path, run: int) -> dict[int, Path]:
    """The checkpoints of a run by round, the newest first."""
    found = {}
    for path in checkpoint_path(folder, run, 0).parent.glob("round-*.safetensors"):
        number = path.stem.removeprefix("round-")
        if number.isdecimal():
            found[int(number)] = path
    return dict(sorted(found.items(), reverse=True))


def forget(folder: Path, run: int, round: int) -> None:
    """Remove all but the last checkpoints up to a round that is committed."""
    for path in [path for t, path in saved(folder, run).items() if t <= round][KEPT:]:
        path.unlink(missing_ok=True)


def clear_drafts(folder: Path, run: int) -> None:
    """Remove what a killed process left half written."""
    for draft in checkpoint_path(folder, run, 0).parent.glob(DRAFT):
        draft.unlink(missing_ok=True)


def newest(folder: Path, run: int, last: int, use: Callable[[Any, int], T]) -> tuple[T | None, tuple[Note, ...]]:
    """What ``use`` makes of the newest sound checkpoint up to a round, and a note of each that was passed over.

    None where there is no checkpoint; where there are some and none can be used, that is an error.
    """
    faults: list[str] = []
    for t, path in saved(folder, run).items():
        if t > last:
            continue
        try:
            state = load(path)
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


def save(path: Path, tree: object) -> None:
    """Write nested dicts, lists, numbers, strings and tensors; after a crash the old file or the new one is there."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_pack(tree, tensors))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        save_file(tensors, draft, metadata={"tree": f"{SUM}{BLANK} {text}"})
    except SafetensorError as error:
        draft.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write the checkpoint {path}: {error}") from error
    with open(draft, "r+b") as file:
        place, found = _place(draft), _sum(draft)
        file.seek(place)
        file.write(found.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> Any:
    """Read what :func:`save` wrote, bit for bit."""
    try:
        with safe_open(path, framework="pt") as file:
            head, text = _split(file.metadata()["tree"])
            if head and head != _sum(path):
                raise CheckpointError("its bytes have changed since it was written")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _unpack(json.loads(text), tensors)
    except Exception as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error}") from error


def has_sum(path: Path) -> bool:
    """Whether a readable checkpoint carries a checksum; those of before the first release do not."""
    with safe_open(path, framework="pt") as file:
        return bool(_split(file.metadata()["tree"])[0])


def _split(tree: str) -> tuple[str, str]:
    """The checksum, empty where there is none, and the tree; JSON never begins like a checksum."""
    if not tree.startswith(SUM):
        return "", tree
    head, _, text = tree.removeprefix(SUM).partition(" ")
    return head or BLANK, text


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


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {TENSOR: name}
    if isinstance(value, dict):
        return {str(k): _pack(v, tensors) for k, v in value.items()}
    return [_pack(v, tensors) for v in value] if isinstance(value, list | tuple) else value


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        return {k: _unpack(v, tensors) for k, v in value.items()}
    return [_unpack(v, tensors) for v in value] if isinstance(value, list) else value
