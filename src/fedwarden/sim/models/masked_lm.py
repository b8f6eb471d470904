"""A masked language model of the Hugging Face hub or of a folder, with adapters: only these are trained and sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import require
from ...core.registry import register
from ..data.places import MINILM, folders, model_folder
from . import Shape
from .lora import Adapted, adapt


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
