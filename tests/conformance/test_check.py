"""``check(kind, name)``: every registered component keeps its laws, and every law catches who breaks it."""

import math
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden import conformance
from fedwarden.aggregators import Median
from fedwarden.attacks import Examples
from fedwarden.conformance import check, laws_of
from fedwarden.conformance.law import examine
from fedwarden.core import registry
from fedwarden.core.errors import ConfigError, UnknownName
from fedwarden.core.registry import exemptions, names, register
from fedwarden.policies import Exclude
from fedwarden.rules import RobustZ
from fedwarden.signals import CentroidDistance
from fedwarden.sim.data.partition import IID
from fedwarden.sim.data.sources import Dataset
from fedwarden_research.conformance.rules import RULES

ELSEWHERE = [("model", "masked_lm")]  # needs files: tests/sim/test_text.py
EVERY = [  # sinks: tests/sinks; plug-ins: tests/aggregators/test_newer.py
    (k, name)
    for k in registry.FOLDERS
    for name in names(k)
    if k != "sink" and (k, name) not in ELSEWHERE and registry.lookup(k, name).__module__.startswith("fedwarden.")
]
STALE = {("aggregator", "centered_clipping", "identical")}  # holds where the radius is as large as the updates


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch, one_thread):
    """No data files, no network, and what a test registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDWARDEN_DATA", raising=False)
    monkeypatch.setattr(socket.socket, "connect", lambda *args: (_ for _ in ()).throw(ConnectionError("no network")))
    monkeypatch.setattr(registry, "_entries", {kind: dict(table) for kind, table in registry._entries.items()})
    monkeypatch.setattr(registry, "_exempt", dict(registry._exempt))


def test_every_kind_has_laws_with_a_name_and_a_sentence():
    assert set(conformance.HOMES) == set(registry.FOLDERS)
    for kind in registry.FOLDERS:
        laws = laws_of(kind)
        assert len({law.name for law in laws}) == len(laws) >= 5
        assert all(law.says.endswith(".") for law in laws)


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=str)
def test_a_registered_component_keeps_its_laws(kind, name):
    report = check(kind, name)
    assert not report.broken
    assert report.excused == {**exemptions(kind, name)}
    if kind not in ("attack", "dataset", "aggregator"):
        assert not report.cannot_tell
    assert "built" in report.kept or kind == "dataset"  # whose files are not here


@pytest.mark.parametrize(("kind", "name"), [e for e in EVERY if exemptions(*e)], ids=str)
def test_an_exemption_is_needed_and_has_a_reason(kind, name):
    module = conformance.import_module(f"fedwarden.conformance.{conformance.HOMES[kind]}")
    options = RULES[name].options if kind == "aggregator" and name in RULES else {}
    subject = module.subject(conformance.Component(kind, name, {k: v for k, v in options.items() if not callable(v)}))
    for law in module.LAWS:
        if law.name in exemptions(kind, name) and (kind, name, law.name) not in STALE:
            assert examine(subject, law).status == "broken"


def test_a_report_tells_each_status_apart():
    report = check("aggregator", "norm-clipping")
    assert (report.kind, report.name) == ("aggregator", "norm_clipping")
    assert "permutation" in report.kept
    assert report.excused["scaling"] == "the limit has a unit of its own"
    assert report.cannot_tell["odd-n"] == "the suite has no loop from its paper"
    assert str(report).endswith("21 kept, 0 broken, 4 excused, of 6 it cannot tell")
    assert check("aggregator", "krum", f=1).broken == {}
    with pytest.raises(AttributeError):
        report.kind = "rule"


def test_what_cannot_be_examined_is_one_error():
    with pytest.raises(ConfigError, match="no kind 'rul'; did you mean 'rule'"):
        check("rul", "gesd")
    with pytest.raises(UnknownName, match="no rule 'gesdd'; did you mean 'gesd'"):
        check("rule", "gesdd")
    register("rule", "odd", exempt={"scalling": "no unit"})(Rule)
    with pytest.raises(ConfigError, match="exempt from 'scalling', which is not among the laws of its kind; did you"):
        check("rule", "odd")
    with pytest.raises(ConfigError, match="exempt from the law 'scaling' without a reason"):
        register("rule", "even", exempt={"scaling": " "})


def test_a_declared_exception_is_excused_and_not_broken():
    register("rule", "mutant", exempt={"scaling": "it counts in whole deviations"})(type("Mutant", (Rule,), {}))
    assert check("rule", "mutant").excused == {"scaling": "it counts in whole deviations"}


def test_a_server_that_cannot_be_lent_is_not_a_law_that_is_kept():
    @register("signal", "greedy")
    @dataclass(frozen=True)
    class Greedy:
        """Asks for more than any server has."""

        def equip(self, server):
            raise ConfigError("greedy needs the clients' data")

        def __call__(self, cohort):
            raise AssertionError("never asked")

    report = check("signal", "greedy")
    assert set(report.kept) == {"first-sentence", "options-have-defaults", "recorded"}
    assert not report.broken
    assert all("cannot lend this signal what it needs" in reason for reason in report.cannot_tell.values())


@pytest.mark.slow
def test_the_laws_of_functions_load_neither_sklearn_nor_pydantic():
    code = (
        "import sys, fedwarden.conformance as c, fedwarden.conformance.__main__; c.check('rule', 'gesd');"
        "c.check('aggregator', 'mean'); print({'sklearn', 'pydantic', 'fedwarden.sim'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout == "set()\n", done.stderr


# Components that keep every law of their kind, to break one at a time.


@dataclass(frozen=True)
class Rule:
    """Flags above median plus MADs."""

    limit: float = 6.0

    def threshold(self, scores):
        return RobustZ(self.limit)(scores, 1).threshold

    def __call__(self, scores, test):
        threshold = self.threshold(scores)
        return fw.Verdict(scores > threshold, threshold)


@dataclass(frozen=True)
class History:
    """The sum of a client's values."""

    def init(self):
        return {}

    def step(self, state, client_ids, values, trusted=None):
        new = {**state, **{c: state.get(c, 0.0) + float(v) for c, v in zip(client_ids, values, strict=True)}}
        return new, np.array([new[c] for c in client_ids])


@dataclass(frozen=True)
class Policy(Exclude):
    """Leaves out who is flagged."""


@dataclass(frozen=True)
class Signal:
    """The distance to the mean."""

    def __call__(self, cohort):
        return CentroidDistance()(cohort)


@dataclass(frozen=True)
class Aggregator(Median):
    """The median."""


@dataclass(frozen=True)
class DataAttack:
    """Adds noise."""

    def poison(self, own, pool, classes, rng):
        return Examples(own.x + torch.from_numpy(rng.normal(size=own.x.shape)).float(), own.y.copy())


@dataclass(frozen=True)
class ModelAttack:
    """Sends the opposite."""

    knowledge = "own"

    def forge(self, view, rng):
        return -view.own


@dataclass(frozen=True)
class Partition(IID):
    """Equal parts."""


@dataclass(frozen=True)
class Sink:
    """Remembers the newest round."""

    def __call__(self, run):
        return Channel()


class Channel:
    last = 0

    def write(self, record, points):
        self.last = record.round

    def close(self, state):
        pass


CALLS = count()


def step(change):
    """A history whose step is changed: ``change(state, ids, values, new state, scores)``."""

    def stepped(self, state, client_ids, values, trusted=None):
        return change(state, client_ids, values, *History().step(state, client_ids, values))

    return {"step": stepped}


def weigh(change):
    return {"step": lambda self, excluded, decision: (excluded, change(decision, excluded))}


def combine(change):
    """An aggregator whose result is changed: ``change(result, cohort, weights)``."""

    def stepped(self, state, cohort, weights):
        return state, change(Median().step({}, cohort, weights)[1], cohort, weights)

    return {"step": stepped}


def krum_like(lowered):
    """A mean of n - f clients that needs n >= 2f + 3; ``lowered(f, rejected, most)`` is the f that it withstands."""

    def stepped(self, state, cohort, weights):
        n, f = len(cohort), lowered(self.f, cohort.rejected, (len(cohort) - 3) // 2)
        if n < 2 * f + 3:
            raise ValueError(f"expected n >= 2f + 3; got n={n}, f={f}")
        return state, fw.Aggregate(cohort.updates.weighted_sum((np.arange(n) < n - f) / (n - f)))

    return {"__annotations__": {"f": int}, "f": 1, "step": stepped}


def double(cohort):
    for *_, block in cohort.updates.blocks():
        block.mul_(2)


def added(result, number):
    return replace(result, update=result.update + number)


def noisy_mean(cohort):
    """The mean, written to what may be the sum that a survey holds."""
    result = plain_mean(cohort)
    result.update.add_(1.0)
    return result


def plain_mean(cohort):
    return fw.Aggregate(cohort.updates.weighted_sum(np.full(len(cohort), 1 / len(cohort))))


MUTANTS = [
    (Rule, "first-sentence", {"__doc__": "flags"}),
    (Rule, "threshold-decides", {"__call__": lambda s, x, t: fw.Verdict(x > 3, Rule().threshold(x))}),
    (Rule, "equal-scores", {"threshold": lambda s, x: float(np.median(x)) - 1 if len(x) else math.inf}),
    (Rule, "translation", {"threshold": lambda s, x: 2.0 * float(np.median(x)) if len(x) else math.inf}),
    (Rule, "scaling", {"threshold": lambda s, x: float(np.median(x)) + 2 if len(x) else math.inf}),
    (Rule, "permutation", {"threshold": lambda s, x: float(x[0] + np.ptp(x) / 2) if len(x) else math.inf}),
    (Rule, "outlier", {"threshold": lambda s, x: math.inf}),
    (Rule, "low-score", {"__call__": lambda s, x, t: fw.Verdict(np.abs(x - np.median(x)) > 50, 50.0)}),
    (Rule, "too-few", {"threshold": lambda s, x: float(np.median(x)) if len(x) else 0.0}),
    (Rule, "repeatable", {"threshold": lambda s, x: next(CALLS)}),
    (Rule, "input-untouched", {"threshold": lambda s, x: (x.sort(), Rule().threshold(x))[1]}),
    (Rule, "built", {"__post_init__": lambda s: 1 / 0}),
    (History, "one-score-each", step(lambda state, ids, values, new, scores: (new, scores * np.nan))),
    (History, "permutation", step(lambda state, ids, values, new, scores: (new, scores + np.arange(len(ids))))),
    (History, "absent-unchanged", step(lambda s, ids, v, new, u: ({c: 0.5 * x for c, x in new.items()}, u))),
    (History, "state-untouched", step(lambda s, ids, v, new, u: (s.update(new) or new, u))),
    (History, "survives-json", step(lambda s, ids, v, new, u: ({**new, **dict.fromkeys(ids, next(CALLS))}, u))),
    (History, "input-untouched", step(lambda s, ids, v, new, u: (v.fill(0.0) or new, u))),
    (History, "always-worse", step(lambda s, ids, v, new, u: (new, -u))),
    (History, "empty-round", step(lambda s, ids, v, new, u: (new or {"nobody": 1.0}, u))),
    (Policy, "weights-in-range", weigh(lambda d, e: 2.0 * ~d.flagged)),
    (Policy, "permutation", weigh(lambda d, e: 1.0 * (np.arange(len(d.flagged)) > 0))),
    (Policy, "state-untouched", weigh(lambda d, e: e.update(x=1) or 1.0 * ~d.flagged)),
    (Policy, "survives-json", {"step": lambda s, e, d: ({1: 2}, 1.0 * ~d.flagged * (1 in e))}),
    (Policy, "never-suspicious", weigh(lambda d, e: 0.5 * ~d.flagged)),
    (Policy, "asks-yes-or-no", {"asks": lambda s, c, e: None}),
    (Signal, "one-score-each", {"__call__": lambda s, c: Signal()(c).astype(np.float32)}),
    (Signal, "permutation", {"__call__": lambda s, c: Signal()(c) + np.arange(len(c))}),
    (Signal, "higher-is-suspicious", {"__call__": lambda s, c: -Signal()(c)}),
    (Signal, "untrusted-do-not-count", {"__call__": lambda s, c: Signal()(replace(c, trusted=np.zeros(0, bool)))}),
    (Signal, "repeatable", {"__call__": lambda s, c: Signal()(c) + next(CALLS)}),
    (Signal, "input-untouched", {"__call__": lambda s, c: double(c) or Signal()(c)}),
    (Aggregator, "nan-client", {"step": lambda s, st, c, w: (st, added(Median().step({}, c, w)[1], math.nan))}),
    (Aggregator, "translation", combine(lambda r, c, w: replace(r, update=2 * r.update))),
    (Aggregator, "defaults", combine(lambda r, c, w: plain_mean(c))),
    (Aggregator, "finite-update", combine(lambda r, c, w: replace(r, update=r.update[:-1]))),
    (Aggregator, "permutation-of-rounds", combine(lambda r, c, w: added(r, sum(map(ord, c.client_ids[0]))))),
    (Aggregator, "zero-weight", combine(lambda r, c, w: plain_mean(c))),
    (Aggregator, "rows-untouched", combine(lambda r, c, w: noisy_mean(c))),
    (Aggregator, "weights-make-the-update", combine(lambda r, c, w: replace(r, weights=w))),
    (Aggregator, "repeatable", combine(lambda r, c, w: added(r, next(CALLS)))),
    (Aggregator, "any-size", combine(lambda r, c, w: added(r, math.inf if len(c) < 3 else 0.0))),
    (Aggregator, "rejected-replies", krum_like(lambda f, rejected, most: f)),
    (Aggregator, "rejected-replies", krum_like(lambda f, rejected, most: f - rejected)),
    (DataAttack, "options-of-its-own", {"__annotations__": {"start": int}, "start": 1}),
    (DataAttack, "samples-keep-their-form", {"poison": lambda s, own, p, c, rng: Examples(own.x[:1], own.y[:1])}),
    (DataAttack, "samples-change-in-a-copy", {"poison": lambda s, own, p, c, rng: own}),
    (DataAttack, "samples-change-in-a-copy", {"poison": lambda s, own, p, c, rng: own._replace(x=own.x.zero_())}),
    (DataAttack, "random-samples", {"poison": lambda s, own, p, c, rng: own._replace(x=1 - own.x)}),
    (DataAttack, "generator-decides", {"poison": lambda s, own, p, c, rng: own._replace(x=torch.rand_like(own.x))}),
    (DataAttack, "goal-is-a-label", {"goal": lambda s, test, classes: test._replace(y=test.y + classes)}),
    (ModelAttack, "on-data-or-updates", {"knowledge": "everything"}),
    (ModelAttack, "on-data-or-updates", {"poison": lambda s, *a: None}),
    (ModelAttack, "updates-keep-their-form", {"forge": lambda s, view, rng: -view.own.double()}),
    (ModelAttack, "nobody-honest", {"forge": lambda s, view, rng: -view.own / (view.n - len(view.own))}),
    (ModelAttack, "updates-change-in-a-copy", {"forge": lambda s, view, rng: view.own.neg_()}),
    (ModelAttack, "generator-decides", {"forge": lambda s, view, rng: torch.rand_like(view.own)}),
    (Partition, "one-part-each", {"__call__": lambda s, d, n, rng: IID()(d, n + 1, rng)}),
    (Partition, "no-row-twice", {"__call__": lambda s, d, n, rng: [rng.permutation(700) for _ in range(n)]}),
    (Partition, "generator-decides", {"__call__": lambda s, d, n, rng: IID()(d, n, np.random.default_rng())}),
    (Partition, "random-rows", {"__call__": lambda s, d, n, rng: IID()(d, n, np.random.default_rng(0))}),
    (Partition, "input-untouched", {"__call__": lambda s, d, n, rng: (d.y_train.zero_(), IID()(d, n, rng))[1]}),
    (Sink, "begins-in-the-run", {"__call__": lambda s, run: type("C", (Channel,), {"last": -1})()}),
    (Sink, "knows-the-newest", {"__call__": lambda s, run: type("C", (Channel,), {"write": lambda *a: None})()}),
    (Sink, "opens-again", {"__call__": lambda s, run: type("C", (Channel,), {"last": 9})()}),
    (Sink, "record-untouched", {"__call__": lambda s, run: type("C", (Channel,), {"write": spoil})()}),
    (Sink, "strange-names", {"__call__": lambda s, run: type("C", (Channel,), {"write": open_by_name})()}),
]  # fmt: skip
KINDS = {DataAttack: "attack", ModelAttack: "attack"}


def spoil(self, record, points):
    record.weights[:] = 0.0
    self.last = record.round


def open_by_name(self, record, points):
    for client in record.client_ids:
        assert client.isidentifier()
    self.last = record.round


@pytest.mark.parametrize("plain", [Rule, History, Policy, Signal, Aggregator, DataAttack, ModelAttack, Partition, Sink])
def test_the_components_that_are_broken_below_are_sound(plain):
    kind = KINDS.get(plain, plain.__name__.lower())
    register(kind, "sound")(plain)
    assert not check(kind, "sound").broken


@pytest.mark.parametrize(("plain", "law", "changes"), MUTANTS, ids=[f"{p.__name__}-{law}" for p, law, _ in MUTANTS])
def test_a_broken_law_is_named_with_what_was_expected(plain, law, changes):
    kind = KINDS.get(plain, plain.__name__.lower())
    own = {"__doc__": "A mutant.", **changes}
    register(kind, "mutant")(dataclass(frozen=True)(type("Mutant", (plain,), own)))
    report = check(kind, "mutant")
    assert law in report.broken, report


@pytest.mark.parametrize(
    ("law", "change"),
    [
        ("one-label-each", {"y_test": torch.full((5,), 7)}),
        ("finite-inputs", {"x_test": torch.zeros(5, 1, 4, 5)}),
        ("images-in-range", {"x_train": torch.full((9, 1, 4, 4), 255.0)}),
        ("clients-hold-rows", {"clients": (np.array([0, 9]),)}),
        ("repeatable", {"x_train": "random"}),
    ],
)
def test_a_data_set_that_breaks_a_law(law, change):
    sound = Dataset(torch.zeros(9, 1, 4, 4), torch.arange(9) % 3, torch.zeros(5, 1, 4, 4), torch.arange(5) % 3, 3)

    def mutant(folder: str | None = None) -> Dataset:
        """A data set."""
        values = {k: torch.rand(9, 1, 4, 4) if isinstance(v, str) else v for k, v in change.items()}
        return replace(sound, **values)

    register("dataset", "mutant")(mutant)
    assert [*check("dataset", "mutant").broken] == [law]


class Net(nn.Module):
    """A linear model."""

    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x):
        return self.layer(x.flatten(1))


@pytest.mark.parametrize(
    ("law", "forward"),
    [
        ("one-output-per-class", lambda self, x: self.layer(x.flatten(1))[:, :2]),
        ("samples-apart", lambda self, x: self.layer(x.flatten(1) - x.flatten(1).mean(dim=0))),
        ("seed-decides", None),
        ("learns", lambda self, x: self.layer(x.flatten(1)).detach().requires_grad_()),
        ("input-untouched", lambda self, x: self.layer(x.mul_(0.5).flatten(1))),
    ],
)
def test_a_model_that_breaks_a_law(law, forward):
    def mutant(shape, classes):
        """A model."""
        made = type("Mutant", (Net,), {"forward": forward or Net.forward})(shape, classes)
        if forward is None:
            nn.init.zeros_(made.layer.weight)
            nn.init.zeros_(made.layer.bias)
        return made

    register("model", "mutant")(mutant)
    assert law in check("model", "mutant").broken


def test_presets_that_break_a_law():
    kept, remembered = fw.Warden.preset("pid_made"), fw.PID()

    @dataclass(frozen=True)
    class Forgetful(fw.PID):
        """Keeps what it sees in a place that all share."""

        def step(self, state, client_ids, values, trusted=None):
            PLACE["state"], scores = remembered.step(PLACE.get("state", {}), client_ids, values, trusted)
            return state, scores

    def shared():
        """The same warden for everybody."""
        return kept

    def leaky():
        """Another warden with the same memory."""
        return fw.Warden([fw.Watch("centroid_distance", Forgetful(), "gesd")])

    def nothing():
        """Nothing."""

    for factory in (shared, leaky, nothing):
        register("preset", factory.__name__)(factory)
    assert [*check("preset", "shared").broken] == ["nothing-shared"]
    assert [*check("preset", "leaky").broken] == ["nothing-shared"]
    assert "is-a-warden" in check("preset", "nothing").broken


PLACE = {}
