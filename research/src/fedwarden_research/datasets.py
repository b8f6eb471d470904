"""Data sets of the papers, from files at hand: MedMNIST, FEMNIST, stop signs, census income, CIFAR-10, MedQuAD."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedwarden.core.errors import ConfigError, require
from fedwarden.core.registry import register
from fedwarden.sim.data.sources import (
    Array,
    DataError,
    Dataset,
    Tokens,
    by_owner,
    column,
    find,
    folders,
    from_hub,
    images,
    locate,
)
from fedwarden.sim.models.masked_lm import MINILM, model_folder

REPEATED = {"fnlwgt", "education"}  # columns of Adult: a weight of the survey, and what education_num says as a number
PBC = "bloodmnist_pbc.npz"
SUBFOLDER = "cifar-10-batches-bin"
BATCHES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
MEDQUAD = "medquad_clients.jsonl.gz"
MASKS = ("[MASK]", "<mask>")


def _ink_on_black(arrays: dict[str, Array]) -> dict[str, Array]:
    """FEMNIST comes as black ink on white paper; inverted, most pixels are 0 and the small CNN learns faster."""
    return {key: 255 - value if key.startswith("x_") else value for key, value in arrays.items()}


@register("dataset", "femnist_digits")
def femnist_digits(folder: str | None = None, invert: bool = True) -> Dataset:
    """FEMNIST digits in the 101 IID clients of the PID-MADE authors, 28x28, ink bright on black as in MNIST.

    With ``invert`` off, black ink on white paper as the files have it.
    """
    arrays = find("femnist_digits_iid.npz", folder)
    return images(_ink_on_black(arrays) if invert else arrays, by_owner(arrays["client_train"]))


@register("dataset", "femnist_writers")
def femnist_writers(folder: str | None = None) -> Dataset:
    """FEMNIST, 62 classes, 12 real writers, strongly non-IID; ink bright on black as in MNIST."""
    arrays = find("femnist62_writers.npz", folder)
    return images(_ink_on_black(arrays), by_owner(arrays["writer_train"]))


@register("dataset", "pneumoniamnist")
def pneumoniamnist(folder: str | None = None) -> Dataset:
    """PneumoniaMNIST, 4,708 / 624, in the 10 overlapping clients of the PID-MADE authors where that file is there."""
    arrays = find("pneumoniamnist.npz", folder)
    try:
        rows = list(find("pneumoniamnist_clients.npz", folder, needs=("rows",))["rows"])
    except DataError:
        return images(arrays)
    return images(arrays, rows)


@register("dataset", "pathmnist")
def pathmnist(folder: str | None = None) -> Dataset:
    """PathMNIST sample, 8,000 / 2,000, 9 classes, 28x28 colour."""
    return images(find("pathmnist_10k.npz", folder))


@register("dataset", "bloodmnist")
def bloodmnist(folder: str | None = None) -> Dataset:
    """BloodMNIST, 8 classes, 28x28 colour: the official bloodmnist.npz, or bloodmnist_pbc.npz with its 40 clients.

    The latter is made from the same source images with a split of its own.
    """
    there = {name for name in ("bloodmnist.npz", PBC) for place in folders(folder) if (place / name).is_file()}
    if there == {PBC}:
        arrays = find(PBC, folder)
        return images(arrays, by_owner(arrays["client_train"]))
    arrays = find("bloodmnist.npz", folder, needs=())
    official = {"x_train": "train_images", "y_train": "train_labels", "x_test": "test_images", "y_test": "test_labels"}
    return images({key: arrays[name] if name in arrays else arrays[key] for key, name in official.items()})


@register("dataset", "its_stop_sign")
def its_stop_sign(folder: str | None = None) -> Dataset:
    """Stop signs against other traffic signs, the 12 clients of the PID-MADE authors, 64x64 colour."""
    arrays = find("its_stop_sign.npz", folder)
    return images(arrays, by_owner(arrays["client_train"]))


@register("dataset", "adult")
def adult(folder: str | None = None, encode: Literal["one_hot", "codes"] = "one_hot") -> Dataset:
    """UCI Adult (Census income): numbers standardised by the training split, categories one-hot.

    With ``encode="codes"`` a category is one number, its place in the alphabet, standardised too, and the survey
    weight and the name of the education, which its number repeats, are left out: 12 inputs.
    """
    if encode not in ("one_hot", "codes"):
        raise ConfigError(f"adult is encoded as 'one_hot' or 'codes'; got {encode!r}")
    with gzip.open(locate("adult.csv.gz", folder), "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    train = np.array([row["split"].startswith("train") for row in rows])
    label = np.array([row["income"].strip().startswith(">50K") for row in rows], dtype=np.int64)
    columns = []
    for name in rows[0].keys() - {"split", "income"} - (REPEATED if encode == "codes" else set()):
        columns.append((name, column([row[name].strip() for row in rows], train, encode == "codes")))
    x = torch.from_numpy(np.concatenate([c for _, c in sorted(columns)], axis=1).astype(np.float32))
    y = torch.from_numpy(label)
    t = torch.from_numpy(train)
    return Dataset(x[t], y[t], x[~t], y[~t], classes=2)


def unpack(raw: bytes) -> tuple[Array, Array]:
    """Images (n, 32, 32, 3) and labels (n,) of records of one byte for the label and 3,072 for the pixels by channel.

    Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009), the binary version of the data set.

    >>> images, labels = unpack(bytes([7]) + bytes(1024) + bytes([255]) * 2048)
    >>> images.shape, labels.tolist(), images[0, 0, 0].tolist()
    ((1, 32, 32, 3), [7], [0, 255, 255])
    """
    if len(raw) % 3073:
        raise ValueError(f"records have 3073 bytes; got {len(raw)} bytes")
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def read_batches(place: Path) -> dict[str, Array]:
    """All of CIFAR-10 from the files of its binary form, packed or not."""
    found: dict[str, Array] = {}
    try:
        for split, names in BATCHES.items():
            plain = [(place / name, place / f"{name}.gz") for name in names]
            raw = (f.read_bytes() if f.is_file() else gzip.decompress(packed.read_bytes()) for f, packed in plain)
            parts = zip(*map(unpack, raw), strict=True)
            found[f"x_{split}"], found[f"y_{split}"] = (np.concatenate(part) for part in parts)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{place} cannot be read as CIFAR-10 in its binary form: {error}") from error
    return found


@register("dataset", "cifar10_whole")
def cifar10_whole(folder: str | None = None) -> Dataset:
    """All of CIFAR-10, 32x32 colour: its binary form in a data folder's cifar-10-batches-bin, else downloaded."""
    for place in folders(folder):
        if (place / SUBFOLDER).is_dir():
            return images(read_batches(place / SUBFOLDER))
    return images(find("cifar10.npz", folder, lambda: from_hub("uoft-cs/cifar10", image="img")))


def chunks(texts: Sequence[Sequence[int]], length: int) -> NDArray[np.int64]:
    """Token ids of texts one after another, cut into rows of equal length; the rest is dropped.

    >>> chunks([[1, 2, 3], [4, 5]], 2).tolist()
    [[1, 2], [3, 4]]
    """
    flat = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts]) if len(texts) else np.zeros(0, np.int64)
    return flat[: len(flat) // length * length].reshape(-1, length)


@register("dataset", "medquad")
def medquad(
    folder: str | None = None,
    tokenizer: str = MINILM,
    length: int = 256,
    test: float = 0.1,
    tested: Sequence[int] | None = None,
) -> Dataset:
    """MedQuAD answers of the PID-MADE authors' 8 topic clients, for the task masked_lm; needs the extra text.

    ``tokenizer`` is a folder with tokenizer.json, of that name also among the data, or a name on the Hugging Face hub.
    The answers of a client are cut into texts of ``length`` tokens; a random share ``test`` of them is to test on, of
    the clients ``tested`` alone where some are listed.
    """
    if length < 2 or not 0 < test < 1:
        raise ConfigError(f"length is at least 2 tokens and test a share in (0, 1); got {length} and {test}")
    path = locate(MEDQUAD, folder)
    words = _tokenizer(tokenizer, folder)
    parts = _tokenised(words, path, length)
    if few := [i for i, part in enumerate(parts) if len(part) < 2]:
        raise DataError(f"clients {few} of {MEDQUAD} hold fewer than 2 texts of {length} tokens; lower the length")
    kept, held, clients, start = [], [], [], 0
    for i, part in enumerate(parts):
        order = np.random.default_rng([0, i]).permutation(len(part))
        cut = max(1, round(test * len(part)))
        held.append(part[np.sort(order[:cut])])
        kept.append(part[np.sort(order[cut:])])
        clients.append(np.arange(start, start := start + len(kept[-1])))
    if strange := set(tested or ()) - set(range(len(parts))):
        raise ConfigError(f"tested names clients {sorted(strange)}; there are {len(parts)}, numbered from 0")
    x, z = (torch.from_numpy(np.concatenate(p)) for p in (kept, [held[i] for i in tested or range(len(held))]))
    special = tuple(sorted(i for i, token in words.get_added_tokens_decoder().items() if token.special))
    mask = next((words.token_to_id(m) for m in MASKS if words.token_to_id(m) is not None), None)
    if mask is None:
        raise DataError(f"the tokenizer {tokenizer!r} has no token {' or '.join(MASKS)} to hide others by")
    labels = torch.zeros(len(x)), torch.zeros(len(z))
    return Dataset(x, labels[0], z, labels[1], words.get_vocab_size(), tuple(clients), Tokens(mask, special))


def topics(folder: str | None = None) -> list[tuple[int, str, int, int]]:
    """Of each client its number and topic, and how many answers and characters it holds."""
    rows: dict[tuple[int, str], list[int]] = {}
    for row in _rows(locate(MEDQUAD, folder)):
        rows.setdefault((int(row["client"]), str(row["topic"])), []).append(len(row["answer"]))
    return [(client, topic, len(sizes), sum(sizes)) for (client, topic), sizes in sorted(rows.items())]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read as lines of JSON: {error}") from error


def _tokenizer(name: str, folder: str | None) -> Any:
    kind = require("tokenizers", "text", "data set 'medquad'").Tokenizer
    try:
        place = model_folder(name, folder)
        words = kind.from_file(str(place / "tokenizer.json")) if place else kind.from_pretrained(name)
    except Exception as error:  # the library has no class of its own for what fails
        looked = ", ".join(map(str, folders(folder)))
        raise DataError(
            f"no tokenizer {name!r} as a folder with tokenizer.json here or in {looked}, nor on the hub ({error}); "
            "put one there or name another"
        ) from error
    words.no_truncation()
    words.no_padding()
    return words


def _tokenised(words: Any, path: Path, length: int) -> list[NDArray[np.int64]]:
    """The texts of each client; kept, because it takes half a minute to make them."""
    key = sha256(path.read_bytes() + words.to_str().encode()).hexdigest()[:16]
    cache = os.environ.get("FEDWARDEN_CACHE") or os.path.expanduser("~/.cache/fedwarden")
    known = Path(cache) / f"medquad-{key}-{length}.npz"
    with suppress(OSError, ValueError, EOFError, KeyError), np.load(known, allow_pickle=False) as file:
        return [file[str(i)].astype(np.int64) for i in range(len(file.files))]
    rows = _rows(path)
    ids = [encoded.ids for encoded in words.encode_batch([str(row["answer"]) for row in rows])]
    owner = np.array([int(row["client"]) for row in rows])
    parts = [chunks([ids[i] for i in np.flatnonzero(owner == c)], length) for c in range(owner.max() + 1)]
    with suppress(OSError):  # a folder that cannot be written to only means making them again
        known.parent.mkdir(parents=True, exist_ok=True)
        draft = known.with_suffix(f".{os.getpid()}.npz")
        numbered: dict[str, Any] = {str(i): part.astype(np.int32) for i, part in enumerate(parts)}
        np.savez_compressed(draft, **numbered)
        draft.replace(known)
    return parts
