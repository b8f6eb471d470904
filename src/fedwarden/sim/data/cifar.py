"""CIFAR-10 in its binary form: five files of training images and one of test images, packed by gzip or not."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SUBFOLDER = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = ("test_batch.bin",)
IMAGE = (3, 32, 32)

Bytes = NDArray[np.uint8]


def unpack(raw: bytes) -> tuple[Bytes, Bytes]:
    """Images (n, 32, 32, 3) and labels (n,) of records of one byte for the label and 3,072 for the pixels by channel.

    Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009), the binary version of the data set.

    >>> images, labels = unpack(bytes([7]) + bytes(1024) + bytes([255]) * 2048)
    >>> images.shape, labels.tolist(), images[0, 0, 0].tolist()
    ((1, 32, 32, 3), [7], [0, 255, 255])
    """
    size = 1 + int(np.prod(IMAGE))
    if len(raw) % size:
        raise ValueError(f"records have {size} bytes; got {len(raw)} bytes")
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, size)
    return records[:, 1:].reshape(-1, *IMAGE).transpose(0, 2, 3, 1), records[:, 0]


def read_batches(folder: Path) -> dict[str, Bytes] | None:
    """All of CIFAR-10 from a data folder, None where a file of it is missing."""
    found: dict[str, Bytes] = {}
    for split, names in (("train", TRAIN), ("test", TEST)):
        files = [_file(folder / SUBFOLDER / name) for name in names]
        if not all(files):
            return None
        parts = [unpack(_read(path)) for path in files if path]
        found[f"x_{split}"] = np.concatenate([x for x, _ in parts])
        found[f"y_{split}"] = np.concatenate([y for _, y in parts])
    return found


def _file(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return path if path.is_file() else packed if packed.is_file() else None


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
