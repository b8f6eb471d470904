"""MedQuAD: answers to medical questions as texts of equal length, for masked language modelling."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....core.errors import ConfigError, require
from ....core.registry import register
from ..places import MINILM, cache_folder, folders, model_folder
from . import DataError, Dataset, Tokens

FILE = "medquad_clients.jsonl.gz"
MASKS = ("[MASK]", "<mask>")


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
    path = _file(folder)
    words = _tokenizer(tokenizer, folder)
    parts = _tokenised(words, path, length)
    if few := [i for i, part in enumerate(parts) if len(part) < 2]:
        raise DataError(f"clients {few} of {FILE} hold fewer than 2 texts of {length} tokens; lower the length")
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
    for row in _rows(_file(folder)):
        rows.setdefault((int(row["client"]), str(row["topic"])), []).append(len(row["answer"]))
    return [(client, topic, len(sizes), sum(sizes)) for (client, topic), sizes in sorted(rows.items())]


def _file(folder: str | None) -> Path:
    path = next((place / FILE for place in folders(folder) if (place / FILE).is_file()), None)
    if path is None:
        looked = ", ".join(map(str, folders(folder)))
        raise DataError(f"no data file {FILE} in {looked}; put it there or point FEDWARDEN_DATA to its folder")
    return path


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
    cache = cache_folder()
    known = None if cache is None else cache / f"medquad-{key}-{length}.npz"
    try:
        if known is not None:
            with np.load(known, allow_pickle=False) as file:
                return [file[str(i)].astype(np.int64) for i in range(len(file.files))]
    except (OSError, ValueError, EOFError, KeyError):  # none yet, or not one of ours: made again
        pass
    rows = _rows(path)
    ids = [encoded.ids for encoded in words.encode_batch([str(row["answer"]) for row in rows])]
    owner = np.array([int(row["client"]) for row in rows])
    parts = [chunks([ids[i] for i in np.flatnonzero(owner == c)], length) for c in range(owner.max() + 1)]
    if known is not None:
        with suppress(OSError):  # a folder that cannot be written to only means making them again
            known.parent.mkdir(parents=True, exist_ok=True)
            draft = known.with_suffix(f".{os.getpid()}.npz")
            numbered: dict[str, Any] = {str(i): part.astype(np.int32) for i, part in enumerate(parts)}
            np.savez_compressed(draft, **numbered)
            draft.replace(known)
    return parts
