"""Generators of torch from the root seed; apart from the seeds, which whoever reads a run needs without torch."""

from __future__ import annotations

import torch

from .seeds import seed_of


def torch_rng(
    root: int, purpose: str, round: int = 0, client: str = "", device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator for one purpose, round and client; on the CPU, but for what only ever runs on a GPU."""
    return torch.Generator(device).manual_seed(seed_of(root, purpose, round, client))
