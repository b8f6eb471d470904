"""The auditor: a participant's own instrument, used inside any training loop; nothing leaves the client."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..core.errors import ConfigError, nearest
from ..core.html import table
from ..core.stats import Scores, spent_level
from ..core.types import Observation
from . import outputs
from .detectors import cut_at, gradnorm, last_linear, magdiff, react
from .information import Information, Params, Sighting
from .metrics import Array, cmd, cosine, frobenius, procrustes
from .outputs import Matrix
from .trend import departure

SOURCES = ("weights", "representations", "gradients", "outputs", "evaluation")
ASKED = ("detectors",)  # sources that are read where they are named
METRICS: Mapping[str, Callable[[Array, Array], float]] = {
    "cosine": cosine,
    "procrustes": procrustes,
    "procrustes_orthogonal": partial(procrustes, align="orthogonal"),
    "procrustes_literal": frobenius,
    "cmd": cmd,
}
STATIC = {"weights", "gradients"}  # sources that need no forward pass
COUNTS = ("accuracy", "ks")  # they move in steps of one sample
RECENT = 10_000  # observations that an auditor can show
PAST = 20  # changes of the outputs that are remembered


class Auditor:
    """Watches the shared model for changes on the other side: give it each round's global model and one's own.

    >>> net = nn.Linear(2, 2)
    >>> auditor = Auditor(net, probe=torch.eye(2), n=2, sources=("weights",), metrics=("cosine",))
    >>> ahead, back = torch.tensor([1.0, 0, 0, 0, 0, 0]), torch.tensor([0, 1.0, 0, 0, 0, 0])
    >>> auditor.observe(1, ahead, own=ahead)
    []
    >>> [o.value for o in auditor.observe(2, (ahead + back) / 2, own=ahead)]  # the other one sent ``back``
    [0.0]
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Tensor,
        labels: ArrayLike | Tensor | None = None,
        n: int = 2,
        share: float | None = None,
        remove_own: bool = True,
        sources: Sequence[str] | None = None,
        metrics: Sequence[str] = ("cosine", "procrustes", "cmd"),
        layers: Sequence[str] | None = None,
        per_layer: bool = False,
        window: int = 5,
        alpha: float = 0.05,
        record: Callable[[Sequence[Observation]], object] | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        """``model`` gives the architecture only; ``probe`` and ``labels`` are samples of one's own.

        ``share`` is one's own part of the average, 1 / n by default, one's share of all examples where the server
        weights by them. ``sources`` are all that the probe allows but "detectors". ``layers`` names the modules whose
        outputs are read, all leaves by default. The trend goes over the last ``window`` values. ``record`` gets the
        observations of each round, as ``partial(ledger.observe, run)`` keeps them in one's own ledger. ``classes`` are
        the names of the classes, by default their numbers.
        """
        known = SOURCES if labels is not None else SOURCES[:-1]
        self.sources = tuple(known if sources is None else sources)
        self.metrics = tuple(metrics)
        for kind, given, names in (("source", self.sources, (*SOURCES, *ASKED)), ("metric", self.metrics, METRICS)):
            for name in given:
                if name not in names:
                    raise ConfigError(f"there is no {kind} {name!r} of an audit; {nearest(name, names)}")
        if "evaluation" in self.sources and labels is None:
            raise ConfigError("the source 'evaluation' needs the labels of the probe; pass labels")
        if n < 2 and remove_own:
            raise ConfigError(f"others are audited in a federation of n >= 2 clients; got n={n}")
        if window < 3:
            raise ConfigError(f"a trend and its deviation need a window of at least 3 rounds; got {window}")
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha lies in (0, 1); got {alpha}")
        self.labels = None if labels is None else np.asarray(torch.as_tensor(labels).cpu(), dtype=np.int64)
        if self.labels is not None and self.labels.shape != (len(probe),):
            raise ConfigError(f"one label per sample of the probe; got {self.labels.shape} for {len(probe)}")
        own = (1 / n if share is None else share) if remove_own else 0.0
        if not 0 <= own < 1:
            raise ConfigError(f"the own share of the average lies in [0, 1); got {own}")
        layers = layers if {"representations", *ASKED} & {*self.sources} else ()
        self.information = Information(model, probe, own, layers, not STATIC.issuperset(self.sources))
        self.per_layer, self.window, self.alpha, self.record = per_layer, window, alpha, record
        self.classes = classes
        self.view: Sighting | None = None
        self.series: dict[str, list[float]] = {}
        self.tests: dict[str, int] = {}
        self.changes: dict[str, list[list[float]]] = {}
        self.recent: deque[Observation] = deque(maxlen=RECENT)

    def observe(
        self, round: int, params: Params, own: Params | None = None, share: float | None = None
    ) -> list[Observation]:
        """What a round shows, from the global model at its end and the model that this client sent in it.

        Both may be flat, state dicts or lists of arrays. Without ``own`` (this client sat out) the global model is the
        others'. ``share`` is the own part of this round's average, where it is not always the same. Weights,
        representations and outputs speak from the second round on, gradients from the third.
        """
        before, now = self.view, self.information.step(self.view, round, params, own, share)
        seen = [self._scalar(round, *found) for found in self._measure(before, now)]
        if before is not None and "outputs" in self.sources:
            pairs = zip(self._answers(before), self._answers(now), strict=True)
            seen += [self._vector(round, metric, after - first) for (metric, first), (_, after) in pairs]
        self.view = now
        self.recent.extend(seen)
        if self.record is not None:
            self.record(seen)
        return seen

    def plot(self, source: str | None = None, metric: str | None = None, layer: str = "", dark: bool = False) -> Any:
        """What one source showed, as a Plotly figure; by default the one with the least probable departure."""
        known = [
            o for o in self.recent if o.layer == layer and source in (None, o.source) and metric in (None, o.metric)
        ]
        first = min(known, key=lambda o: (math.isnan(o.p), o.p), default=None)
        of = (source or "all sources", metric or "all metrics") if first is None else (first.source, first.metric)
        return import_module("fedwarden.figures.audit").leakage(tuple(self.recent), *of, layer, dark)

    def _repr_html_(self) -> str:
        last = [o for o in self.recent if o.round == self.recent[-1].round]
        rows = [
            [o.source, o.metric, o.layer or "whole model", f"{o.value:.4g}", f"{o.expected:.4g}", f"{o.p:.2g}",
             "alarm" if o.alarm else ""]
            for o in last
        ]  # fmt: skip
        title = f"Auditor, round {last[0].round}" if last else "Auditor: nothing observed yet"
        return table(["source", "metric", "layer", "measured", "expected", "p", ""], rows, title)

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered, as plain numbers and tensors; representations are computed again from the model."""
        view = self.view
        return {
            "round": 0 if view is None else view.round,
            "target": None if view is None else view.target,
            "gradient": None if view is None else view.gradient,
            "series": {key: list(values) for key, values in self.series.items()},
            "tests": dict(self.tests),
            "changes": {key: [list(change) for change in past] for key, past in self.changes.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another auditor of the same configuration stood."""
        flat, target, gradient = self.information.flat, state["target"], state["gradient"]
        self.view = None
        if target is not None:
            step = None if gradient is None else flat(gradient)
            self.view = self.information.look(int(state["round"]), flat(target), step)
        self.series = {key: list(values) for key, values in state["series"].items()}
        self.tests = dict(state["tests"])
        self.changes = {key: [list(change) for change in past] for key, past in state["changes"].items()}

    def _measure(self, before: Sighting | None, now: Sighting) -> Iterator[tuple[str, str, str, float]]:
        """Source, metric, layer and value of all that is one number a round."""
        if self.labels is not None and "evaluation" in self.sources:
            logits = answers(now)
            yield "evaluation", "loss", "", outputs.loss(logits, self.labels)
            yield "evaluation", "accuracy", "", outputs.accuracy(logits, self.labels)
        if before is None:
            return
        parameters = self.information.parameters
        if "weights" in self.sources:
            yield from self._compare("weights", before, now, lambda view: parameters(view.target), join)
        if "gradients" in self.sources and before.gradient is not None and now.gradient is not None:
            yield from self._compare("gradients", before, now, self._step, join)
        if "representations" in self.sources:
            yield from self._compare("representations", before, now, lambda view: view.layers, list)
        if "detectors" in self.sources:
            yield from self._detect(before, now)
        if "outputs" in self.sources:
            tests: dict[str, Callable[[Matrix, Matrix], float]] = {"ks": outputs.ks, "mmd": outputs.mmd}
            if self.labels is not None:
                tests["bbse"] = partial(outputs.label_shift, labels=self.labels)
            first, after = answers(before), answers(now)
            sound = bool(np.isfinite(first).all() and np.isfinite(after).all())
            for metric, test in tests.items():
                yield "outputs", metric, "", test(first, after) if sound else math.nan

    def _detect(self, before: Sighting, now: Sighting) -> Iterator[tuple[str, str, str, float]]:
        """The detectors of the literature, where the model ends with a linear layer."""
        old, new = (self._last(view) for view in (before, now))
        if old is None or new is None or now.logits is None:
            return
        (old_features, old_weight, _), (features, weight, bias) = old, new
        known = now.logits.argmax(dim=1) if self.labels is None else torch.as_tensor(self.labels).to(features.device)
        yield "detectors", "gradnorm", "", gradnorm(features, now.logits)
        yield "detectors", "react", "", react(features, weight, bias, cut_at(old_features))
        yield "detectors", "magdiff", "", magdiff(features, weight, old_features, old_weight, known)

    def _last(self, view: Sighting) -> tuple[Tensor, Tensor, Tensor] | None:
        """What goes into the last linear layer, its weights and its bias."""
        if view.logits is None or view.logits.ndim != 2:
            return None
        return last_linear(self.information.parameters(view.target), view.layers, view.logits)

    def _compare(
        self,
        source: str,
        before: Sighting,
        now: Sighting,
        parts: Callable[[Sighting], Mapping[str, Tensor]],
        whole: Callable[[Iterable[Tensor]], Array],
    ) -> Iterator[tuple[str, str, str, float]]:
        """Metrics of the whole model and, if asked, of each layer."""
        first, after = parts(before), parts(now)
        one, other = whole(first.values()), whole(after.values())
        for metric in self.metrics:
            yield source, metric, "", METRICS[metric](one, other)
            for layer in after if self.per_layer else ():
                yield source, metric, layer, METRICS[metric](first[layer], after[layer])

    def _step(self, view: Sighting) -> Mapping[str, Tensor]:
        return {} if view.gradient is None else self.information.parameters(view.gradient)

    def _answers(self, view: Sighting) -> Iterator[tuple[str, Scores]]:
        """The mean answers by class."""
        logits = answers(view)
        yield "mean_logits", outputs.mean_logits(logits)
        if self.labels is not None:
            yield "mean_softmax", outputs.mean_softmax(logits, self.labels)

    def _scalar(self, round: int, source: str, metric: str, layer: str, value: float) -> Observation:
        key = f"{source}/{metric}/{layer}"
        past = self.series.setdefault(key, [])
        step = 1 / len(self.information.probe) if metric in COUNTS else 0.0
        found = departure(value, np.array(past), step)
        if math.isfinite(value):
            self.series[key] = [*past, value][-self.window :]
        alarm = self._alarm(key, found.p)
        return Observation(round, source, metric, layer, value, found.expected, found.score, found.p, alarm)

    def _vector(self, round: int, metric: str, change: Scores) -> Observation:
        """A change of the answers: its size, the usual size, and its size in units of the past changes."""
        past = np.array(self.changes.get(metric, []))
        value, expected, score, p = size(change), math.nan, math.nan, math.nan
        parts: dict[str, float] = {}
        if len(past):
            expected = float(np.median([size(old) for old in past]))
        if len(past) > 1 and math.isfinite(value):
            standardised = outputs.standardised_change(change, past)
            parts = dict(zip(self.classes or map(str, range(len(change))), standardised.tolist(), strict=True))
            score, p = size(standardised), outputs.change_p(change, past)
        if math.isfinite(value):
            self.changes[metric] = [*self.changes.get(metric, []), change.tolist()][-PAST:]
        alarm = self._alarm(f"outputs/{metric}/", p)
        return Observation(round, "outputs", metric, "", value, expected, score, p, alarm, parts)

    def _alarm(self, key: str, p: float) -> bool:
        """Whether a p-value lies below the part of the level that this test of its series may spend."""
        if not math.isfinite(p):
            return False
        self.tests[key] = self.tests.get(key, 0) + 1
        return p <= spent_level(self.alpha, self.tests[key])


def answers(view: Sighting) -> Matrix:
    """The logits of a view as (N, classes)."""
    logits = view.logits
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"outputs are read as logits (samples, classes); the model gives "
            f"{tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__}: choose other sources"
        )
    return np.asarray(logits.double().cpu().numpy(), dtype=np.float64)


def size(change: Scores) -> float:
    """The root mean square over classes.

    >>> size(np.array([1.0, -7.0]))
    5.0
    """
    return float(np.sqrt(np.mean(np.square(change))))


def join(parts: Iterable[Tensor]) -> Tensor:
    """The pieces of a flat model as one vector."""
    return torch.cat(list(parts))
