"""Replies as a deployment gets them: packed objects, unpacked by Flower's own code, which damaged ones break."""

import os
import random

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedwarden.flower import Guarded
from fedwarden.flower.grid import OneByOne
from flower.conftest import quiet  # noqa: F401
from flower.nodes import BAD, NODES, LocalGrid, honest, model, state

from .damage import TIMES

SEED = int(os.environ.get("FEDWARDEN_FUZZ_SEED", random.SystemRandom().randrange(2**32)))


class Packed(LocalGrid):
    """Keeps replies as the bytes of their objects, as a SuperLink does; ``damage`` rewrites those of one node."""

    def __init__(self, nodes, damage) -> None:
        super().__init__(nodes)
        self.damage, self.waiting = damage, {}

    def push_messages(self, messages):
        for message in messages:
            replies = super().send_and_receive([message])
            for reply in replies:
                objects = {key: item.deflate() for key, item in get_all_nested_objects(reply).items()}
                if message.metadata.dst_node_id == BAD:
                    objects = self.damage(objects)
                self.waiting[message.metadata.message_id] = get_object_id(reply.deflate()), objects
            yield message.metadata.message_id

    def pull_messages(self, message_ids) -> list[Message]:
        found = []
        for number in message_ids:
            if number in self.waiting:
                head, objects = self.waiting.pop(number)  # as confirmed, so that it cannot be pulled again
                found.append(inflate_object_from_contents(head, objects))
        return found


def flipped(rng):
    """One to five bytes of one object changed."""

    def damage(objects):
        key = rng.choice(sorted(objects))
        data = bytearray(objects[key])
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        return {**objects, key: bytes(data)}

    return damage


DAMAGE = {
    "nothing": lambda objects: dict.fromkeys(objects, b""),
    "missing": lambda objects: dict(list(objects.items())[1:]),
    "zeros": lambda objects: {key: bytes(len(data)) for key, data in objects.items()},
    "cut": lambda objects: {key: data[: len(data) // 2] for key, data in objects.items()},
    "unknown type": lambda objects: dict.fromkeys(objects, b"Bomb 0 0\x00"),
}


def play(damage, rounds=2):
    guarded = Guarded(FedAvg())
    grid = OneByOne(Packed({node: honest(node) for node in NODES}, damage), poll=0.0)
    result = guarded.start(grid, model(), num_rounds=rounds)
    return guarded, result


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_reply_that_cannot_be_unpacked_is_rejected_alone(kind):
    guarded, result = play(DAMAGE[kind])
    assert [r.client_id for r in guarded.record.rejected] == [str(BAD)]
    assert "cannot be unpacked" in str(guarded.record.rejected[0].reason)
    assert (guarded.record.weights > 0).sum() == len(NODES) - 1
    assert all(np.isfinite(v).all() for v in state(result.arrays).values())


def test_without_damage_nothing_is_lost():
    guarded, _ = play(lambda objects: objects)
    assert not guarded.record.rejected
    assert (guarded.record.weights > 0).all()


def test_random_damage_ends_no_run():
    print("seed", SEED)
    rng, refused = random.Random(SEED), 0
    for _ in range(6 * TIMES):
        guarded, result = play(flipped(rng), rounds=10)
        assert result.arrays, f"seed {SEED}"
        refused += len(guarded.record.rejected)
        assert {r.client_id for r in guarded.record.rejected} <= {str(BAD)}, f"seed {SEED}"
    assert refused  # or this would test nothing


def test_a_grid_waits_no_longer_than_it_is_told():
    grid = OneByOne(Packed({node: (lambda message: []) for node in NODES}, lambda o: o), poll=0.01)
    guarded = Guarded(FedAvg())
    guarded.start(grid, model(), num_rounds=1, timeout=0.05)
    assert {str(r.reason) for r in guarded.record.rejected} == {"did not answer in time"}
