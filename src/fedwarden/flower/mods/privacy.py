"""Local differential privacy: a node clips and noises what it sends, counts what that costs, and stops in time.

Whatever goes wrong, nothing of the node's leaves it: it answers with an error that says no more than that.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray
from scipy.special import ndtri

from ...audit import mitigations
from ...core.words import printable
from ...models.trial import VARIANCE
from ..records import Template, is_training, listed, view

KEY = "fedwarden.privacy"  # the record in the node's context
FILE = "privacy-account"  # of a node's configuration: where the account is kept on disk
FAILED = 6  # Flower's number for a mod that cannot do its work
REFUSED = "fedwarden: a mod could not protect this node's answer, so there is none; the node's log says why"
SPENT = "fedwarden: this node has spent its privacy budget and answers no more"
LOG = logging.getLogger("flwr")


class BudgetSpent(ValueError):
    """One more answer would cost more than the node has left."""


def clip_and_noise(
    norm: float,
    noise: float,
    epsilon: float,
    delta: float = 1e-5,
    public: Sequence[str] = ("num-examples",),
    arrays: str = "arrays",
) -> Mod:
    """A mod that clips a node's update to a length and adds Gaussian noise of deviation ``noise * norm`` to each entry.

    The update is the difference to the model that was received, over all floating-point arrays, BatchNorm's statistics
    too; arrays of whole numbers go back as they came. The node's answers of all rounds together are (epsilon,
    delta)-private: whatever two sets of data the node could hold (the sensitivity is 2 norm), the server can tell them
    apart by no more than that. The round that would cost more is refused, and so is everything that cannot be checked;
    a refusal costs what an answer does, since it tells something too.
    Of the metrics in any answer only those named in ``public`` are sent, as they are: name none that may not be known.

    What was spent is kept in the node's context, which Flower forgets when the node is started again, and in the file
    that the node's configuration names under ``privacy-account``, which outlives runs and restarts.
    """
    limit = Limit(norm, noise, epsilon, delta)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            if is_training(message):
                charge(context, limit)  # first: whether an answer is refused later may hang on the data
            reply = call_next(message, context)
            if reply.has_error():
                return Message(Error(reply.error.code, REFUSED), reply_to=message)
            content = listed(reply.content, public)
            sent = dict(reply.content.array_records)
            if is_training(message):
                content[arrays] = protected(message.content.array_records[arrays], sent.pop(arrays), norm, noise)
            if sent or reply.content.config_records:
                raise ValueError(f"the app also sends {[*sent, *reply.content.config_records]}, which is not protected")
            return Message(content, reply_to=message)
        except BudgetSpent as error:
            LOG.warning("fedwarden: %s", error)
            return Message(Error(FAILED, SPENT), reply_to=message)
        except Exception as error:
            LOG.error("fedwarden: nothing is sent: %s: %s", type(error).__name__, printable(str(error)))
            return Message(Error(FAILED, REFUSED), reply_to=message)

    return mod


def only_metrics(*names: str) -> Mod:
    """A mod that lets nothing leave a node but the arrays that it trained and the metrics of these names.

    Of an error it tells no more than that there was one: its words may quote data. Name the metric that replies are
    weighed by as well, such as "num-examples".
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            reply = call_next(message, context)
            if reply.has_error():
                return Message(Error(reply.error.code, REFUSED), reply_to=message)
            content = listed(reply.content, names)
            if is_training(message):
                content.update(reply.content.array_records)
            return Message(content, reply_to=message)
        except Exception as error:
            LOG.error("fedwarden: nothing is sent: %s: %s", type(error).__name__, printable(str(error)))
            return Message(Error(FAILED, REFUSED), reply_to=message)

    return mod


def cost(noise: float) -> float:
    """What one answer adds to the account: the square of the sensitivity over the deviation.

        mu^2 = (2 C / (m C))^2

    Dong et al., Gaussian Differential Privacy, arXiv 1905.02383, theorem 1; any two clipped updates are at most 2 C
    apart. Costs of answers add up (corollary 2), also where later questions depend on earlier answers.

    >>> cost(noise=4.0)
    0.25
    """
    return (2 / noise) ** 2


def epsilon_of(spent: float, delta: float) -> float:
    """The smallest epsilon for which answers that cost so much together are (epsilon, delta)-private.

    The sum of costs mu^2 is that of one Gaussian mechanism of multiplier 1 / mu; see
    :func:`fedwarden.audit.mitigations.epsilon`.

    >>> epsilon_of(0.0, 1e-5), round(epsilon_of(1.0, 1e-5), 2)
    (0.0, 4.38)
    """
    return 0.0 if spent == 0 else mitigations.epsilon(1 / math.sqrt(spent), 1, delta)


def gaussian(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers from random 64-bit words.

        z = Phi^-1((floor(b / 2^12) + 1/2) / 2^52)

    Words of the operating system's generator have no seed that a server could guess, as a pseudo-random generator's
    noise has.

    >>> gaussian(np.array([2**63], np.uint64)).round(9).tolist()
    [0.0]
    """
    return np.asarray(ndtri(((bits >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52), np.float64)


@dataclass(frozen=True)
class Limit:
    """How much is clipped and noised, and what the answers may cost together."""

    norm: float
    noise: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("norm", "noise", "epsilon"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"clip_and_noise needs a {name} above 0; got {getattr(self, name)}")
        if not 0 < self.delta < 1:
            raise ValueError(f"clip_and_noise needs a delta between 0 and 1; got {self.delta}")

    def check(self, spent: float) -> float:
        """What will have been spent after one more answer; :class:`BudgetSpent` where that is too much."""
        after = spent + cost(self.noise)
        if not epsilon_of(after, self.delta) <= self.epsilon:
            raise BudgetSpent(
                f"one more answer would raise epsilon from {epsilon_of(spent, self.delta):.3g} to "
                f"{epsilon_of(after, self.delta):.3g}; this node's limit is {self.epsilon:g} at delta {self.delta:g}"
            )
        return after


def protected(received: ArrayRecord, sent: ArrayRecord, norm: float, noise: float) -> ArrayRecord:
    """The arrays to send: the model received, plus the clipped and noised update."""
    whole = Template.of(received, buffers=())
    trained = whole.settle(sent)[0]  # raises where names, shapes or dtypes are not the model's
    floating = [slot for slot in whole.slots if slot.dtype.kind == "f"]
    if not floating:
        raise ValueError("the model has no floating-point arrays to protect")
    before, after = (
        np.concatenate([view(record[slot.name]).reshape(-1).astype(np.float64) for slot in floating])
        for record in (received, trained)
    )
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError("the model received or trained has numbers that are not finite")
    clipped = mitigations.clip(torch.from_numpy(after - before), norm).numpy()
    drawn = gaussian(np.frombuffer(secrets.token_bytes(8 * len(clipped)), np.uint64))
    private = clipped + noise * norm * drawn  # by itself: what is large in the model must not round it before the noise
    parts = np.split(before + private, np.cumsum([math.prod(s.shape) for s in floating])[:-1])
    made = ArrayRecord(dict(received))
    for slot, part in zip(floating, parts, strict=True):
        with np.errstate(over="ignore"):
            new = np.maximum(part, 0.0) if slot.name.endswith(VARIANCE) else part
            new = new.astype(slot.dtype).reshape(slot.shape)
        if not np.isfinite(new).all():
            raise ValueError(f"noise has left no finite numbers in {slot.name}, which is {slot.spelling}")
        made[slot.name] = Array(new)
    return made


def charge(context: Context, limit: Limit) -> None:
    """Count one answer in context and file before it is made; :class:`BudgetSpent` where it may not be."""
    given, held = context.node_config.get(FILE), context.state.config_records.get(KEY)
    if given is not None and not (isinstance(given, str) and given):
        raise ValueError(f"{FILE} is the name of a file; got {given!r}")
    spent = 0.0 if held is None else _amount(held["spent"])
    if given is None:
        after = limit.check(spent)
    else:
        path = Path(given)
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs of a node never count at the same time
            recorded = _amount(json.loads(path.read_text(encoding="utf-8"))["spent"]) if path.exists() else 0.0
            after = limit.check(max(spent, recorded))
            draft = path.with_name(path.name + ".new")
            with draft.open("w", encoding="utf-8") as file:
                json.dump({"spent": after}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
    context.state[KEY] = ConfigRecord({"spent": after})


def _amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"a privacy account holds a number of at least 0; got {value!r}")
    return float(value)
