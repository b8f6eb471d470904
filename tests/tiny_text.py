"""A language model and texts so small that tests can train on them."""

from __future__ import annotations

import gzip
import json
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{i}" for i in range(35)]
V = len(SPECIAL) + len(WORDS)


def bert(folder: Path, vocabulary: int = V) -> Path:
    """A tiny BERT with random weights, as a folder that transformers reads."""
    transformers = import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=vocabulary, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


def data_folder(place: Path, clients: int = 4) -> Path:
    """A data folder: that model with a tokenizer, and a MedQuAD of some clients with 20 answers of 20 words each.

    Client c uses the first 8 + 4c words, as far as there are so many.
    """
    tokenizers = import_module("tokenizers")
    base = bert(place / "tiny")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(SPECIAL)
    words.save(str(base / "tokenizer.json"))
    rng = np.random.default_rng(0)
    with gzip.open(place / "medquad_clients.jsonl.gz", "wt") as file:
        for client in range(clients):
            for _ in range(20):
                answer = " ".join(rng.choice(WORDS[: 8 + 4 * client], size=20))
                row = {"client": client, "topic": f"t{client}", "question": "", "answer": answer}
                file.write(json.dumps(row) + "\n")
    return place
