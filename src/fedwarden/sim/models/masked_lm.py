"""A masked language model of the Hugging Face hub or of a folder, with low-rank adapters: these alone are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import require
from ...core.registry import register
from ..data.sources import folders
from . import Shape

MINILM = "minilm_mlm"  # a masked language model that lies among the data, and not on the hub


def model_folder(name: str, folder: str | None = None) -> Path | None:
    """The folder of a language model: the path itself, or of that name among the data; None: it is to be on the hub."""
    places = [Path(name).expanduser(), *(place / name for place in folders(folder))]
    found = next((place for place in places if place.is_dir()), None)
    if found is None and name == MINILM:
        raise FileNotFoundError("which is not on the hub")
    return found


class Adapted(nn.Module):
    """A linear layer with a low-rank correction.

        h = W x + b + (alpha / r) B A dropout(x),   A (r, inputs) random, B (outputs, r) zero at first

    Hu et al. (2022), section 4.1. Differs from the paper: A is drawn uniformly, as torch draws a linear layer's weights
    and as the library peft does, which gave the factors their names.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.layer = layer
        self.lora_A = nn.Parameter(torch.empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.dropout = nn.Dropout(dropout)
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        correction = F.linear(F.linear(self.dropout(x), self.lora_A), self.lora_B)
        out: Tensor = self.layer(x)
        return out + self.scale * correction


def freeze(model: nn.Module) -> None:
    """Make every parameter a constant, which moves with the model and is in no state of it."""
    for module in model.modules():
        held = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        for name, value in held.items():
            delattr(module, name)
            module.register_buffer(name, value.detach(), persistent=False)


def adapt(model: nn.Module, layers: Sequence[str], rank: int, alpha: float, dropout: float) -> None:
    """Freeze a model and give its linear layers of these names (the last part of a path) an adapter each.

    >>> model = nn.ModuleDict({"query": nn.Linear(4, 4), "key": nn.Linear(4, 4)})
    >>> adapt(model, ["query"], rank=2, alpha=4.0, dropout=0.1)
    >>> {name: tuple(value.shape) for name, value in model.state_dict().items()}
    {'query.lora_A': (2, 4), 'query.lora_B': (4, 2)}
    """
    if rank < 1 or not 0 <= dropout < 1:
        raise ValueError(f"an adapter has a rank of at least 1 and a dropout in [0, 1); got {rank} and {dropout}")
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if name in layers and isinstance(child, nn.Linear)
    ]
    if not found:
        known = sorted({n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
        raise ValueError(f"no linear layer is named {' or '.join(layers)}; it has {', '.join(known)}")
    freeze(model)
    for parent, name, layer in found:
        setattr(parent, name, Adapted(layer, rank, alpha, dropout))


class LanguageModel(nn.Module):
    """A language model that takes tokens (n, L), and gives logits (n, L, V) of every one.

    Questions (n, 2, L) are tokens, and 1 where an answer is wanted: then it gives the logits (k, V) of these alone,
    since the last layer costs as much as all others. Its own layers run as in evaluation even while the adapters train.
    ``mixed`` training computes in bfloat16 where that is safe; evaluation never does.
    """

    def __init__(self, base: Any, mixed: bool = False) -> None:
        super().__init__()
        self.base = base
        self.mixed = mixed

    def train(self, mode: bool = True) -> LanguageModel:
        super().train(False)
        self.training = mode
        for module in self.modules():
            if isinstance(module, Adapted):
                module.dropout.train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point() or x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[1] != 2):
            raise TypeError(
                f"needs tokens (n, L), or questions (n, 2, L), as integers; got {tuple(x.shape)}, {x.dtype}"
            )
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed and self.training):
            if x.ndim == 2:
                return self.base(input_ids=x).logits  # type: ignore[no-any-return]
            tokens, wanted = x.unbind(dim=1)

            def pick(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
                if x.is_cuda and torch.cuda.is_current_stream_capturing():  # in a graph no shape may depend on a number
                    return (given[0][:, :1],)
                return (given[0][wanted.bool()],)

            handle = self.base.get_output_embeddings().register_forward_pre_hook(pick)
            try:
                return self.base(input_ids=tokens).logits  # type: ignore[no-any-return]
            finally:
                handle.remove()


@register(
    "model",
    "masked_lm",
    exempt={
        "one-output-per-class": "it has one for each token of a text",
        "learns": "what it learns are the tokens of a text",
    },
)
def masked_lm(
    shape: Shape,
    classes: int,
    base: str = MINILM,
    rank: int = 16,
    alpha: float = 32.0,
    dropout: float = 0.1,
    layers: Sequence[str] = ("query", "value"),
    mixed: bool = False,
) -> nn.Module:
    """A masked language model with low-rank adapters, which alone are trained and sent; needs the extra text.

    ``base`` is a folder, of that name also among the data, or a name on the Hugging Face hub. ``mixed`` trains in
    bfloat16 where that is safe, as GPUs do faster.
    """
    transformers = require("transformers", "text", "model 'masked_lm'")
    transformers.utils.logging.disable_progress_bar()
    try:
        folder = model_folder(base)
        model = transformers.AutoModelForMaskedLM.from_pretrained(
            folder or base, local_files_only=folder is not None, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        looked = ", ".join(map(str, folders()))
        raise ValueError(
            f"no language model {base!r} as a folder here or in {looked}, nor on the hub "
            f"({str(error).partition(chr(10))[0]}); give base a folder with config.json and model.safetensors"
        ) from error
    size, longest = model.config.vocab_size, getattr(model.config, "max_position_embeddings", None)
    if size != classes:
        raise ValueError(
            f"{base!r} has a vocabulary of {size} tokens, the data one of {classes}; name the same tokenizer there"
        )
    if longest is not None and shape[0] > longest:
        raise ValueError(f"{base!r} takes texts of at most {longest} tokens; got {shape[0]}: shorten those of the data")
    adapt(model, layers, rank, alpha, dropout)
    return LanguageModel(model, mixed)
