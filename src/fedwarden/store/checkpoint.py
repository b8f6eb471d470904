"""A run's state on disk: tensors in safetensors, everything else as JSON in its header; written atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import FedwardenError

TENSOR = "__tensor__"


class CheckpointError(FedwardenError):
    """A checkpoint that cannot be read."""


def save(path: Path, tree: Any) -> None:
    """Write nested dicts, lists, numbers, strings and tensors; after a crash the old file or the new one is there."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_pack(tree, tensors))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    save_file(tensors, draft, metadata={"tree": text})
    with open(draft, "rb") as file:
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
            tree = json.loads(file.metadata()["tree"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _unpack(tree, tensors)
    except Exception as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error}") from error


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
