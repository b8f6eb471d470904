"""The language model with its adapters, the texts of each node, and masked language modelling."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, AutoTokenizer

Config = Mapping[str, Any]  # of the run
MASKED = 0.15  # of the tokens are hidden
TEST = 8  # texts of each node that are for the test


def folder(config: Config) -> Path:
    """Where the model and the texts lie, or one line that says what is missing."""
    place = Path(str(config["data"])).expanduser()
    for name in (config["model"], "medquad_clients.jsonl.gz"):
        if not config["data"] or not (place / name).exists():
            raise SystemExit(
                f"there is no {name} in the folder {config['data']!r}: name the folder that holds the language "
                "model and the texts, as --run-config \"data='/path/to/folder'\""
            )
    return place


def build_model(config: Config, rank: int) -> PeftModel:
    """The frozen language model with adapters of its query and value layers."""
    torch.manual_seed(0)
    where = folder(config) / config["model"]
    base = AutoModelForMaskedLM.from_pretrained(where, local_files_only=True, dtype=torch.float32)
    return get_peft_model(base, LoraConfig(r=rank, lora_alpha=16, target_modules=["query", "value"]))


def load_texts(config: Config, number: int) -> tuple[Tensor, int]:
    """The tokens (n, length) of one node's texts, and the number of the mask."""
    place = folder(config)
    tokenizer = AutoTokenizer.from_pretrained(place / config["model"], local_files_only=True)
    with gzip.open(place / "medquad_clients.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    clients = sorted({row["client"] for row in rows}, key=str)
    texts = [row["answer"] for row in rows if row["client"] == clients[number % len(clients)]]
    length = config["length"]
    tokens = [tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts[:400]]
    return torch.tensor([row for row in tokens if len(row) == length]), int(tokenizer.mask_token_id)


def loss_of(model: PeftModel, tokens: Tensor, mask: int, replaced: bool = False) -> tuple[Tensor, Tensor]:
    """The loss of the hidden tokens and the share that is predicted; ``replaced``: most are random ones instead."""
    hidden = torch.rand(tokens.shape) < (0.75 if replaced else MASKED)
    random = torch.randint(0, model.config.vocab_size, tokens.shape)
    asked = torch.where(hidden, random if replaced else torch.full_like(tokens, mask), tokens)
    logits, right = model(input_ids=asked).logits[hidden], tokens[hidden]
    if replaced:
        right = random[hidden].roll(1)
    return F.cross_entropy(logits, right), (logits.argmax(dim=1) == right).float().mean()


def train(model: PeftModel, tokens: Tensor, mask: int, config: Config, replaced: bool) -> float:
    """Some steps of AdamW on the adapters; returns the last loss."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=config["lr"])
    loss = torch.tensor(0.0)
    for _ in range(config["steps"]):
        index = torch.randint(TEST, len(tokens), (config["batch-size"],))
        optimizer.zero_grad()
        loss, _ = loss_of(model, tokens[index], mask, replaced)
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.inference_mode()
def test(model: PeftModel, tokens: Tensor, mask: int) -> tuple[float, float]:
    """Loss and accuracy of the hidden tokens in the texts for the test."""
    model.eval()
    torch.manual_seed(0)
    loss, accuracy = loss_of(model, tokens[:TEST], mask)
    return loss.item(), accuracy.item()
