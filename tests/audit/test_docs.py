"""The documentation's example runs as it stands."""

from __future__ import annotations

import doctest
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_loop_of_the_documentation():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    finally:
        torch.set_num_threads(threads)
    assert found.attempted > 10
    assert found.failed == 0
