"""Memory that several processes share: a file without a name, gone with the last process that has it open."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ...core.errors import FedwardenError

SHARED_MEMORY = Path("/dev/shm")
ALIGNMENT = 64  # bytes, of a cache line


class ScratchError(FedwardenError):
    """No room for what the processes share."""


Kind = tuple[tuple[int, ...], torch.dtype]
"""The shape and the type of an array."""


def create(arrays: Mapping[str, Kind], job: Mapping[str, Any]) -> tuple[BinaryIO, int, dict[str, Tensor]]:
    """A file with room for these arrays, and behind them the job as JSON; where the job starts; and the arrays."""
    places: dict[str, tuple[int, tuple[int, ...], str]] = {}
    end = 0
    for name, (shape, dtype) in arrays.items():
        places[name] = (end, shape, str(dtype).removeprefix("torch."))
        end += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    text = json.dumps({**job, "arrays": places}).encode()
    folder = _folder(end + len(text))
    file: BinaryIO = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    try:
        _reserve(file.fileno(), end)
        os.pwrite(file.fileno(), text, end)
    except OSError as error:
        file.close()
        where = f"{folder or 'the folder of temporary files'} has no room for {end / 1e6:,.1f} MB"
        raise ScratchError(
            f"{where} that workers share ({error.strerror}); make room there, or set train.workers = 1"
        ) from error
    return file, end, views(file.fileno(), places)


def views(file: int, places: Mapping[str, Any]) -> dict[str, Tensor]:
    """The arrays of a file as tensors, the same memory in every process."""
    memory = mmap.mmap(file, 0)
    return {
        name: torch.frombuffer(memory, dtype=getattr(torch, dtype), count=prod(shape), offset=start).reshape(shape)
        for name, (start, shape, dtype) in places.items()
    }


def _folder(needed: int) -> str | None:
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return str(SHARED_MEMORY) if usable and shutil.disk_usage(SHARED_MEMORY).free > 2 * needed else None


def _reserve(file: int, size: int) -> None:
    """Take the room now: writing to a mapped file on a full disk ends the process."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # macOS
        os.ftruncate(file, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # of file systems that cannot
            raise
        os.ftruncate(file, size)
