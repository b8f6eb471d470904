"""Every aggregator off its defaults: precisions, kernels, columns that are not measured, and memory that is saved."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.store import checkpoint
from fedwarden.updates import cpu
from fedwarden.updates import updates as module

D = 3000
ROOT = torch.from_numpy(np.random.default_rng(99).normal(0.4, 1.0, size=D + 30))
OPTIONS = {
    "mean": {"weighted": False},
    "median": {},
    "trimmed_mean": {"b": 3},
    "krum": {"f": 1},
    "multi_krum": {"f": 1, "m": 4},
    "bulyan": {"f": 1},
    "geometric_median": {"weighted": True},
    "sign": {"step_size": 0.5},
    "norm_clipping": {"limit": 30.0, "weighted": False},
    "centered_clipping": {"limit": 30.0, "steps": 2},
    "fltrust": {"root": ROOT},
    "foolsgold": {},
    "clustered": {"limit": 0.9, "weighted": False},
    "alignins": {"share": 0.1, "angle": 1.5, "signs": 0.8},
    "flame": {"noise": 0.01, "weighted": True},
    "flanders": {"window": 3, "sample": 50, "limit": 2.0},
    "foundationfl": {"m": 3, "then": "median"},
    "lfighter": {"classes": 10, "features": 64, "weighted": False},
    "nearest_neighbour_mixing": {"f": 2, "then": {"name": "centered_clipping", "limit": 30.0}},
    "bucketing": {"s": 2, "then": {"name": "trimmed_mean", "b": 1}},
    "caf": {"f": 2},
    "smea": {"f": 2},
    "arc": {"f": 2, "then": {"name": "centered_clipping", "limit": 30.0}},
    "dnc": {"f": 1, "c": 1.5, "sample": 200, "steps": 2},
    "randeigen": {"f": 1, "steps": 2},
}
REMEMBERS = {
    "centered_clipping": {"steps": 1},
    "foolsgold": {},
    "flanders": {"window": 3, "sample": 20},
    "nearest_neighbour_mixing": {"f": 2, "then": "foolsgold"},
    "bucketing": {"s": 2, "then": {"name": "centered_clipping", "steps": 2}},
    "arc": {"f": 2, "then": {"name": "centered_clipping", "steps": 1}},
}


@contextmanager
def path(kernels):
    """Everything through the compiled kernels in several tasks, or nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KERNEL_SIZE", 0)
        patch.setattr(cpu, "GROUP_BYTES", 1)
        if not kernels:
            patch.setattr(cpu, "kernels", lambda: None)
        yield


def people(t):
    """Ten clients, of whom one or two are away in a round."""
    return [i for i in range(10) if i not in ((), (2,), (5, 6), (2, 8))[t % 4]]


def rows(t, extra=0):
    """Around a vector common to all, in numbers that float16 and float32 hold exactly."""
    rng = np.random.default_rng(t)
    x = 0.4 + rng.normal(size=(10, D + extra)) * np.linspace(0.5, 1.5, 10)[:, None]
    return x.astype(np.float16).astype(np.float64)


def play(name, form, options=None, rounds=4, extra=0):
    """Updates and weights of several rounds with clients coming and going, one of them without a weight."""
    rule = make("aggregator", name, **(OPTIONS[name] if options is None else options))
    if name == "fltrust":
        rule = make("aggregator", name, root=ROOT[: D + extra])
    state, seen = rule.init(), []
    for t in range(1, rounds + 1):
        here = people(t)
        counts, params = np.linspace(5.0, 9.0, 10)[here], ROOT[: D + extra]
        cohort = fw.Cohort(t, tuple(f"c{i}" for i in here), form(t, here), counts, params)
        weights = np.where(np.arange(len(here)) == t % 3, 0.0, 1.0)
        state, result = rule.step(state, cohort, weights)
        seen.append((result.update.double().numpy(), result.weights))
    return seen


def same(a, b, rtol):
    for (x, v), (y, w) in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, atol=rtol * np.abs(y).max())
        assert (v is None) == (w is None)
        if v is not None:
            np.testing.assert_allclose(v, w, atol=rtol)


def test_no_aggregator_is_forgotten():
    assert set(OPTIONS) == set(fw.names("aggregator"))


@pytest.mark.parametrize("name", OPTIONS)
def test_kernels_and_torch_agree(name):
    pytest.importorskip("numba")

    def form(t, here):
        return fw.Updates.of(rows(t)[here].astype(np.float32))

    with path(kernels=True):
        compiled = play(name, form)
    with path(kernels=False):
        plain = play(name, form)
    same(compiled, plain, 2e-5)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_not_measured_decides_nothing_and_is_aggregated(name, kernels):
    """Parameters, running statistics, more parameters and a counter, as a model with BatchNorm sends them."""
    if kernels:
        pytest.importorskip("numba")
    stats, tail = slice(2000, 2020), slice(D + 20, D + 21)

    def form(factor, values):
        def build(t, here):
            x = rows(t, 20)[here]
            x[:, stats] *= factor
            values[t] = np.hstack([x, np.rint(1e4 * factor * np.abs(x[:, :1]))])
            layers = [
                [r[:2000], r[2000:2020], r[2020:], np.array([c])] for r, c in zip(x, values[t][:, -1], strict=True)
            ]
            typed = [[np.float32(a), np.float32(b), np.float32(c), np.int64(n)] for a, b, c, n in layers]
            return fw.Updates.of(typed, measured=[(0, 2000), (2020, D + 20)])

        return build

    small, large = {}, {}
    with path(kernels):
        a, b = play(name, form(1.0, small), extra=21), play(name, form(1e4, large), extra=21)
    measured = np.r_[0:2000, 2020 : D + 20]
    same([(x[measured], w) for x, w in a], [(x[measured], w) for x, w in b], 2e-5)
    for t, ((x, w), (y, _)) in enumerate(zip(a, b, strict=True), 1):
        for got, sent in ((x, small[t]), (y, large[t])):
            past = np.vstack(
                [sent, np.zeros_like(sent[:1])] + [values[s] for values in (small, large) for s in range(1, t)]
            )
            for columns in (stats, tail):
                low, high = past[:, columns].min(axis=0), past[:, columns].max(axis=0)
                room = 1e-5 * np.abs(past[:, columns]).max()
                assert (got[columns] >= low - room).all()
                assert (got[columns] <= high + room).all()
                assert np.abs(got[columns]).max() > 0
                if w is not None:
                    np.testing.assert_allclose(got[columns], w @ sent[:, columns], atol=10 * room)


@pytest.mark.parametrize("name", REMEMBERS)
def test_memory_goes_through_a_checkpoint_bit_for_bit(name, tmp_path):
    def warden():
        return fw.Warden(aggregator={"name": name, **REMEMBERS[name]})

    def cohort(t):
        here = people(t)
        return fw.Cohort(t, tuple(f"c{i}" for i in here), fw.Updates.of(rows(t)[here, :200]), np.full(len(here), 5.0))

    live = warden()
    for t in range(1, 7):
        if t > 1:
            checkpoint.save(tmp_path / "state", live.state_dict())
            resumed = warden()
            resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
            update = resumed.step(cohort(t)).update
            forgetful = warden().step(cohort(t)).update
        want = live.step(cohort(t)).update
        if t > 1:
            assert torch.equal(update, want)
    assert not torch.equal(forgetful, want) or name == "flanders"  # nobody jumps here: then its memory changes nothing
