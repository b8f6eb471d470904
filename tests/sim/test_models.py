"""The models of the papers: their sizes by hand, their shapes, and weights that only the seed decides."""

import pytest
import torch

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import names
from fedwarden.sim.models import build_model
from fedwarden.sim.training.stacked import Stacked

BY_CLASS = [name for name in names("model") if name != "masked_lm"]  # that one: test_text.py
SHAPES = {"mlp": (1, 8, 8), "census_mlp": (14,), "resnet18": (3, 8, 8), "audit_cnn": (1, 8, 9)}
SMALL = {"resnet18": {"width": 2}, "mlp": {"hidden": [6]}}


def build(name, shape=None, classes=5, seed=0, **options):
    return build_model(name, {**SMALL.get(name, {}), **options}, shape or SHAPES.get(name, (1, 16, 18)), classes, seed)


def conv(inputs, outputs, size):
    return outputs * (inputs * size * size + 1)


def linear(inputs, outputs):
    return outputs * (inputs + 1)


@pytest.mark.parametrize(
    ("model", "shape", "classes", "options", "parameters"),
    [
        ("mlp", (1, 8, 8), 10, {"hidden": [32, 16]}, linear(64, 32) + linear(32, 16) + linear(16, 10)),
        ("mlp", (7,), 3, {"hidden": []}, linear(7, 3)),
        (
            "census_mlp", (100,), 2, {},
            linear(100, 64) + linear(64, 32) + linear(32, 16) + linear(16, 8) + linear(8, 2),
        ),
        # 28 -> 24 -> 12 -> 8 -> 4
        (
            "pid_made_cnn", (1, 28, 28), 10, {},
            conv(1, 6, 5) + conv(6, 16, 5) + linear(16 * 4 * 4, 64) + linear(64, 32) + linear(32, 10),
        ),
        (
            "pid_made_cnn_large", (3, 28, 28), 8, {},
            conv(3, 16, 5) + conv(16, 32, 5) + linear(32 * 4 * 4, 128) + linear(128, 64) + linear(64, 8),
        ),
        # 28 -> 26 -> 24 -> 12; torch's own MNIST example counts 1,199,882
        ("audit_cnn", (1, 28, 28), 10, {}, 1_199_882),
        # the number the ResNet-18 for CIFAR-10 is known by
        ("resnet18", (3, 32, 32), 10, {"width": 64}, 11_173_962),
        # torchvision's 11,689,512 with 1,000 classes; each has 513 numbers
        ("resnet18", (3, 32, 32), 10, {"pooled": True}, 11_689_512 - 990 * 513),
    ],
)  # fmt: skip
def test_the_number_of_parameters(model, shape, classes, options, parameters):
    made = build_model(model, options, shape, classes, 0)
    assert sum(p.numel() for p in made.parameters()) == parameters


@pytest.mark.parametrize("name", BY_CLASS)
def test_all_but_batchnorm_can_be_stacked(name):
    assert (Stacked.of(build(name)) is None) == (name == "resnet18")


@pytest.mark.parametrize(("shape", "ok"), [((1, 16, 16), True), ((1, 15, 16), False), ((1, 16, 15), False)])
def test_the_smallest_picture_of_the_pid_made_cnn(shape, ok):
    if ok:
        assert build("pid_made_cnn", shape)(torch.rand(2, *shape)).shape == (2, 5)
    else:
        with pytest.raises(ConfigError, match="at least 16 x 16; got input shape"):
            build("pid_made_cnn", shape)


@pytest.mark.parametrize("name", ["pid_made_cnn", "pid_made_cnn_large", "audit_cnn", "resnet18"])
def test_what_needs_pictures_says_so(name):
    for shape in ((64,), (1, 3, 64), (2, 2, 64, 64)):
        with pytest.raises(ConfigError, match="needs images of channels x at least"):
            build(name, shape)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mpl", {}, "no model 'mpl'; did you mean 'mlp'"),
        ("mlp", {"hiden": [3]}, "'mlp' has no option 'hiden'; did you mean 'hidden'"),
        ("mlp", {"shape": [3]}, "no option 'shape'"),  # that comes from the data
        ("mlp", {"hidden": 3}, r"model 'mlp': option 'hidden' is of type list\[int\]; got 3$"),
        ("mlp", {"hidden": [8.5]}, r"option 'hidden' is of type list\[int\]; got \[8.5\]$"),
        ("mlp", {"hidden": "64"}, r"option 'hidden' is of type list\[int\]; got '64'$"),
        ("mlp", {"hidden": [-3]}, r"model 'mlp': option 'hidden' is a list of widths of at least 1; got \[-3\]$"),
        ("pid_made_cnn", {"dropout": [1.5, 0.2]}, r"option 'dropout' is two shares from 0 to 1; got \[1.5, 0.2\]$"),
        ("pid_made_cnn", {"dropout": [0.5]}, r"option 'dropout' is two shares from 0 to 1; got \[0.5\]$"),
        ("pid_made_cnn", {"channels": [6]}, r"option 'channels' is two widths of at least 1; got \[6\]$"),
        ("pid_made_cnn", {"hidden": 64}, r"option 'hidden' is of type list\[int\]; got 64$"),
        ("resnet18", {"width": "64"}, "option 'width' is of type int; got '64'$"),
        ("resnet18", {"width": 0}, "option 'width' is at least 1; got 0$"),
        ("lfighter_cnn", {"dropout": 2.0}, "dropout probability has to be between 0 and 1, but got 2"),
    ],
)
def test_what_a_user_can_get_wrong(name, options, message):
    with pytest.raises(ConfigError, match=message):
        build_model(name, options, (1, 28, 28), 10, 0)
