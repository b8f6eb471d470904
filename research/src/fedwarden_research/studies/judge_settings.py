"""Settings that others have published, as data: where they are from, what differs here, and what was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from fedwarden.studies.runner import Table

from .plan import only_by

NO_ATTACK = "none"
CLEAN = ("FedAvg", "auto")  # defences that are run without attack too

Published = tuple[float, float]
"""Accuracy and attack success in percent."""


@dataclass(frozen=True)
class Judge:
    """A published setting: the scenario, its attacks and defences, and what was published of each pair.

    ``facts`` say what the setting is, ``differs`` what is not as published.
    """

    name: str
    title: str
    source: str
    facts: tuple[str, ...]
    differs: tuple[str, ...]
    rounds: int
    clients: int
    share: float
    scenario: Table
    attacks: Mapping[str, Table]
    defences: Mapping[str, Table]
    published: Mapping[tuple[str, str], Published] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every attack with every defence; without attack only plain FedAvg and ``auto``."""
        return [*product([NO_ATTACK], CLEAN), *product(self.attacks, self.defences)]


_EQUAL = {"preset": "none", "options": {"weighted": False}}
_AUTO = {"preset": "auto", "options": {"weighted": False}}

LFIGHTER = Judge(
    name="lfighter",
    title="LFighter, Table 3: MNIST, label flips",
    source=(
        "Jebreel, Domingo-Ferrer, Sánchez and Blanco-Justicia, LFighter: Defending against the label-flipping attack "
        "in federated learning, Neural Networks 170 (2024), Table 3; settings from github.com/najeebjebreel/LFighter, "
        "Experiments_MNIST.ipynb"
    ),
    facts=(
        "MNIST among 100 clients by Dirichlet(1), all asked in every one of 200 rounds; 40 of them label each 7 a 1",
        "a CNN of two 5x5 convolutions (10 and 20 channels) and a hidden layer of 50 with dropout; SGD with learning "
        "rate 0.01, momentum 0.9, weight decay 0.0005, batches of 64, 3 local epochs",
        "updates count equally; attack success is the share of the sevens in the test data that are read as ones",
    ),
    differs=(
        "theirs is one run, and tests the mean of the last 10 models; ours averages the tests of the last 10 rounds",
        "dropout takes single values where theirs takes channels, and the last, smaller batch of an epoch is used",
    ),
    rounds=200,
    clients=100,
    share=0.4,
    scenario={
        "data": {
            "dataset": {"name": "mnist", "standardised": True}, "partition": {"name": "dirichlet", "alpha": 1.0}
        },
        "model": {"name": "lfighter_cnn"},
        "train": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 3, "batch_size": 64},
    },
    attacks={"label flip": {"name": "label_flip", "mode": "targeted", "source": 7, "target": 1}},
    defences={
        "FedAvg": _EQUAL,
        "median": only_by("median"),
        "trimmed mean": only_by("trimmed_mean", b=40),
        "Multi-Krum": only_by("multi_krum", f=40),
        "FoolsGold": only_by("foolsgold"),
        "FLAME": only_by("flame"),
        "LFighter": only_by("lfighter"),
        "auto": _AUTO,
    },
    published={
        ("label flip", "FedAvg"): (95.11, 9.44),
        ("label flip", "FLAME"): (96.36, 1.26),
        ("label flip", "LFighter"): (96.30, 0.68),
    },
)  # fmt: skip

FLPOISON = Judge(
    name="flpoison",
    title="FLPoison: MNIST, LeNet-5, 48 % attackers",
    source=(
        "Zhang et al., SoK: Benchmarking Poisoning Attacks and Defenses in Federated Learning, arXiv 2502.03801; "
        "settings from github.com/vio1etus/FLPoison, configs/FedSGD_MNIST_config.yaml"
    ),
    facts=(
        "MNIST among 50 clients, IID, all asked in every round; 24 of them attack",
        "LeNet-5; SGD with learning rate 0.01, momentum 0.9, weight decay 0.0005, batches of 64",
        "attacks with the options of that file: IPM with 0.5, ALIE, Min-Max, and every 3 labelled a 7",
    ),
    differs=(
        "a client passes over its data once a round, for 30 rounds, and sends the sum; theirs sends one batch a round, "
        "for 300 rounds, so that no published number can be held against ours: the column is empty",
        "momentum starts anew in every round",
        "Multi-Krum and DnC are told 23 attackers, the most that Multi-Krum tolerates",
    ),
    rounds=30,
    clients=50,
    share=0.48,
    scenario={
        "data": {"dataset": {"name": "mnist", "standardised": True}, "partition": "iid"},
        "model": {"name": "lenet5"},
        "train": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 1, "batch_size": 64},
    },
    attacks={
        "label flip": {"name": "label_flip", "mode": "targeted", "source": 3, "target": 7},
        "ALIE": {"name": "alie"},
        "IPM": {"name": "ipm", "epsilon": 0.5},
        "Min-Max": {"name": "min_max"},
    },
    defences={
        "FedAvg": _EQUAL,
        "median": only_by("median"),
        "Multi-Krum": only_by("multi_krum", f=23),
        "RFA": only_by("geometric_median"),
        "DnC": only_by("dnc", f=23),
        "FLAME": only_by("flame"),
        "auto": _AUTO,
    },
)

BACKFED = Judge(
    name="backfed",
    title="BackFed: CIFAR-10, ResNet-18, a backdoor with 10 of 100 clients a round",
    source=(
        "Dao, Nguyen, Doan and Wong, BackFed: An Efficient & Standardized Benchmark Suite for Backdoor Attacks in "
        "Federated Learning, arXiv 2507.04903; settings from github.com/thinh-dao/BackFed, config/cifar10.yaml and "
        "config/atk_config/cifar10_multishot.yaml; results from the files that its authors kept there until June 2025 "
        "(csv_results/server_lr, robust_aggregation_cifar10 and anomaly_detection_cifar10 at commit 735e603)"
    ),
    facts=(
        "CIFAR-10 among 100 clients by Dirichlet(0.5), 10 of them asked in every round; 10 of the 100 attack",
        "torchvision's ResNet-18, made for larger images; SGD with learning rate 0.02, momentum 0.9, weight decay "
        "0.0005, batches of 64 and none of fewer than 16, 2 local epochs",
        "a white square of 5x5 pixels at the lower right on 20 of 64 images, which are labelled 2; attack success is "
        "the share of the other classes' test images that it turns into 2",
        "every published number is the mean of the rounds 91 to 100 of the attack in one run",
    ),
    differs=(
        "the first 18,000 training images in place of 50,000, and 3,000 test images in place of 10,000",
        "learning rate 0.02 in place of 0.1, with which FedAvg stays at 27 % without attackers (one run)",
        "batches of fewer than 16 images are left out: with all but single ones, as theirs, some of our smaller "
        "clients train their BatchNorm layers on a few images and send updates up to 20,000 times as long as the "
        "median one, so that FedAvg stays at 23 and 37 % without attackers and auto, which leaves them out, reaches "
        "58 and 59 %",
        "the attack begins after 100 rounds of training, theirs after 2,000 to 2,300",
        "attackers train as everybody does; theirs for 6 epochs, with learning rate 0.05 to begin with",
        "images are neither normalised nor mirrored, and the square touches the edges",
        "the server takes the whole step; of theirs FLAME, Multi-Krum and norm clipping take a tenth of it, and FedAvg "
        "is that run of theirs which seems to take all of it: the file does not say, the order of their script does",
        "Multi-Krum is told one attacker in every round, theirs the true number",
        "the paper's own tables were not at hand and may say otherwise",
    ),
    rounds=200,
    clients=100,
    share=0.1,
    scenario={
        "data": {
            "dataset": {"name": "cifar10"}, "limit": 18_000, "partition": {"name": "dirichlet", "alpha": 0.5}
        },
        "model": {"name": "resnet18", "pooled": True},
        "train": {
            "lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 2, "batch_size": 64, "smallest_batch": 16,
            "participation": 0.1,
        },
    },
    attacks={"pattern": {"name": "backdoor", "target": 2, "fraction": 20 / 64, "size": 5, "start": 101}},
    defences={
        "FedAvg": _EQUAL,
        "median": only_by("median"),
        "trimmed mean": only_by("trimmed_mean", b=2),
        "Multi-Krum": only_by("multi_krum", f=1, m=9),
        "RFA": only_by("geometric_median"),
        "norm clipping": only_by("norm_clipping", limit=3.0),
        "FLAME": only_by("flame"),
        "auto": _AUTO,
    },
    published={
        ("pattern", "FedAvg"): (66.44, 73.90),
        ("pattern", "median"): (48.51, 33.29),
        ("pattern", "trimmed mean"): (71.87, 78.68),
        ("pattern", "Multi-Krum"): (70.97, 5.96),
        ("pattern", "RFA"): (73.50, 85.49),
        ("pattern", "norm clipping"): (70.04, 8.67),
        ("pattern", "FLAME"): (70.92, 52.22),
    },
)  # fmt: skip

JUDGES = (LFIGHTER, FLPOISON, BACKFED)
