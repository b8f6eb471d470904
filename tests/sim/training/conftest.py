"""What stands in for a CUDA graph where there is no GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Stands in for a CUDA graph: it keeps the operations and the memory of one step, and runs them again.

    Like with a graph, a replay sees only what was copied into that memory. Recording also takes the step, once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, found))
        return found

    def pool(self) -> None:
        """A tape has memory of its own."""

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, kept in self.operations:
            for before, now in zip(tree_leaves(kept), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(before, torch.Tensor) and before.data_ptr() != now.data_ptr():  # not a view, not in place
                    before.copy_(now)


class OneStream:
    """The CPU has no streams to wait for."""

    def __init__(self, device: object = None) -> None:
        pass

    def wait_stream(self, other: object) -> None:
        pass


@pytest.fixture(params=["tape", "cuda:0", "cuda:1"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where to train: on the CPU with a tape in place of the graph, or on a GPU, the first or not."""
    if request.param != "tape":
        if torch.cuda.device_count() <= torch.device(request.param).index:
            pytest.skip(f"needs the CUDA device {request.param}")
        return str(request.param)
    for name, stand_in in {
        "Stream": OneStream, "current_stream": OneStream, "stream": nullcontext, "device": nullcontext,
        "CUDAGraph": Tape, "graph": lambda tape, stream, pool=None: tape, "synchronize": lambda device: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return "cpu"
