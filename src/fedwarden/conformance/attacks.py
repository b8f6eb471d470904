"""The laws of an attack: on the data of a client, or on the updates of clients that act together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..attacks import DataAttack, Effect, Examples, ModelAttack, Targeted, View
from ..core.registry import lookup, parameters
from ..core.stats import Mask
from ..sim.scenario import AttackConfig
from .component import Component
from .law import CannotTell, laws, line, require

N, CLASSES, K, D = 30, 4, 3, 50


@dataclass(frozen=True)
class Examined:
    """An attack, and the kind of samples that an attack on data takes."""

    component: Component
    attack: Any
    samples: Callable[[int, int], Examples]

    def poison(self, own: Examples, seed: int = 1) -> Examples:
        """What an attack on data makes of a client's samples."""
        if not isinstance(self.attack, DataAttack):
            raise CannotTell("it changes updates, not data")
        poisoned: Examples = self.attack.poison(own, self.samples(200, 9), CLASSES, np.random.default_rng(seed))
        return poisoned

    def forge(self, seen: View) -> torch.Tensor:
        """What an attack on updates sends."""
        if not isinstance(self.attack, ModelAttack):
            raise CannotTell("it changes data, not updates")
        return self.attack.forge(seen, np.random.default_rng(1))


def subject(component: Component) -> Examined:
    """The attack; one on data that does not take images gets tokens with classes, or texts to be masked."""
    attack = component.make()
    if not isinstance(attack, DataAttack):
        return Examined(component, attack, images)
    for samples in (images, tokens, texts):
        try:
            attack.poison(samples(N, 0), samples(200, 9), CLASSES, np.random.default_rng(1))
        except ValueError as error:
            reason = line(error)
        else:
            return Examined(component, attack, samples)
    raise CannotTell(f"it takes neither images nor tokens: {reason}")


def images(n: int, seed: int) -> Examples:
    """Small grey images."""
    rng = np.random.default_rng(seed)
    return Examples(torch.from_numpy(rng.random((n, 1, 8, 8), dtype=np.float32)), rng.integers(0, CLASSES, size=n))


def tokens(n: int, seed: int) -> Examples:
    """Short texts of token ids."""
    rng = np.random.default_rng(seed)
    return Examples(torch.from_numpy(rng.integers(0, 50, size=(n, 12))), rng.integers(0, CLASSES, size=n))


def texts(n: int, seed: int) -> Examples:
    """Token ids with the labels of masked language modelling."""
    return tokens(n, seed)._replace(y=np.zeros(n, np.float32))


def view(informed: bool = True, k: int = K, others: int = 6, round: int = 2) -> View:
    """What attackers see: with or without the others' updates, first round or later, alone or together."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(0.1, 1.0, size=(k + others, D))).float()
    previous = None if round == 1 else torch.ones(D)
    base = torch.zeros(D)
    if not informed:
        return View(rows[:k], None, base, previous, round, k + others)
    honest = rows[k:]

    def accepts(sent: torch.Tensor) -> Mask:
        return np.asarray(sent.norm(dim=1).numpy() < 10.0)

    def outcome(sent: torch.Tensor) -> Effect:
        return Effect(torch.cat([sent, honest]).mean(dim=0), np.full(k, 1 / (k + others)), accepts(sent))

    clients = tuple(str(i) for i in range(k, k + others))
    return View(rows[:k], honest, base, previous, round, k + others, accepts, clients, outcome)


def on_data_or_updates(it: Examined) -> None:
    """It changes data (poison) or updates (forge with a knowledge of own or all), and not both."""
    got = [name for name in ("poison", "forge") if hasattr(it.attack, name)]
    require(len(got) == 1, f"expected poison or forge; got {' and '.join(got) or 'neither'}")
    if got == ["forge"]:
        knowledge = getattr(it.attack, "knowledge", None)
        require(knowledge in ("own", "all"), f"expected the knowledge 'own' or 'all'; got {knowledge!r}")


def options_of_its_own(it: Examined) -> None:
    """No option has the name of a key that every attack of a scenario has."""
    hidden = set(parameters(lookup("attack", it.component.name))) & set(AttackConfig.model_fields)
    require(not hidden, f"expected other names for the options; got {', '.join(sorted(hidden))}")


def samples_keep_their_form(it: Examined) -> None:
    """Samples keep their number, shape and type; inputs are finite and labels are classes."""
    for n in (1, 2, N):
        own = it.samples(n, 0)
        x, y = it.poison(own)
        got, want = (x.shape, x.dtype, y.shape, y.dtype), (own.x.shape, own.x.dtype, own.y.shape, own.y.dtype)
        require(got == want, f"n={n}: expected {want}; got {got}")
        require(x.isfinite().all(), f"n={n}: expected finite inputs; got others")
        require(((y >= 0) & (y < CLASSES)).all(), f"n={n}: expected labels from 0 to {CLASSES - 1}; got {y!s:.60}")


def samples_change_in_a_copy(it: Examined) -> None:
    """Samples are changed, and only in what is returned."""
    own = it.samples(N, 0)
    if not isinstance(it.attack, DataAttack):
        raise CannotTell("it changes updates, not data")
    pool = it.samples(200, 9)
    poisoned = it.attack.poison(own, pool, CLASSES, np.random.default_rng(1))
    require(not _equal(poisoned, it.samples(N, 0)), "expected changed samples; got them as they were")
    for what, now, before in (("own", own, it.samples(N, 0)), ("pool", pool, it.samples(200, 9))):
        require(_equal(now, before), f"expected the samples of {what!r} as they were; got others")


def generator_decides(it: Examined) -> None:
    """The generator that is given decides, and no other."""
    a, b = (_attacked(it, seed) for seed in (0, 5))
    require(_equal(a, b), "expected the same with another seed of torch; got something else")


def _attacked(it: Examined, seed: int) -> Examples:
    """Samples, or updates without labels, after torch's own generator was given a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(it.attack, DataAttack):
            return it.poison(it.samples(N, 0))
        return Examples(it.forge(view()), np.zeros(0, np.int64))


def random_samples(it: Examined) -> None:
    """Another generator gives other samples."""
    own = it.samples(N, 0)
    require(not _equal(it.poison(own, 1), it.poison(own, 2)), "expected other samples; got the same")


def goal_is_a_label(it: Examined) -> None:
    """What an attack wants of the model is a class for each of some test samples."""
    goal = it.attack.goal(it.samples(N, 0), CLASSES) if isinstance(it.attack, Targeted) else None
    if goal is None:
        raise CannotTell("it wants no particular label")
    sizes = len(goal.x), len(goal.y)
    require(sizes[0] == sizes[1] <= N, f"expected as many labels as inputs, at most {N}; got {sizes}")
    inside = ((goal.y >= 0) & (goal.y < CLASSES)).all()
    require(inside, f"expected labels from 0 to {CLASSES - 1}; got {goal.y!s:.60}")


SEEN = {
    "everything": view(),
    "their own": view(informed=False),
    "the first round": view(round=1),
    "alone": view(k=1),
    "alone, their own": view(k=1, informed=False),
}


def updates_keep_their_form(it: Examined) -> None:
    """Updates keep their shape and type and are finite, whatever the attackers see."""
    for text, seen in SEEN.items():
        _formed(it, text, seen)


def nobody_honest(it: Examined) -> None:
    """Updates keep their shape and type and are finite where every client is an attacker."""
    _formed(it, "nobody else", view(others=0, k=5))


def _formed(it: Examined, text: str, seen: View) -> None:
    rows = it.forge(seen)
    got, want = (tuple(rows.shape), rows.dtype), (tuple(seen.own.shape), seen.own.dtype)
    require(got == want, f"{text}: expected {want}; got {got}")
    require(rows.isfinite().all(), f"{text}: expected finite updates; got others")


def updates_change_in_a_copy(it: Examined) -> None:
    """Updates are changed, and only in what is returned."""
    seen, before = view(), view()
    require(not torch.equal(it.forge(seen), before.own), "expected changed updates; got them as they were")
    for what in ("own", "others", "previous"):
        alike = torch.equal(getattr(seen, what), getattr(before, what))
        require(alike, f"expected {what!r} as it was; got something else")


def _equal(a: Examples, b: Examples) -> bool:
    return torch.equal(a.x, b.x) and np.array_equal(a.y, b.y)


LAWS = laws(
    on_data_or_updates, options_of_its_own, generator_decides, samples_keep_their_form, samples_change_in_a_copy,
    random_samples, goal_is_a_label, updates_keep_their_form, nobody_honest, updates_change_in_a_copy,
)  # fmt: skip
