"""APPFL in a test: its reports on data import torchvision, whose operators do not load beside a CPU build of torch."""

from importlib.metadata import version
from importlib.util import find_spec

import torch

if "+cpu" in torch.__version__ and find_spec("torchvision") and "+" not in version("torchvision"):
    for name in ("nms", "qnms"):  # which its import asks for by name; nothing here calls them
        torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
