"""A filter for sites of NVIDIA FLARE: listed metrics leave a site, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants

from ..core.errors import ConfigError

ROUNDS = (AppConstants.START_ROUND, AppConstants.CURRENT_ROUND, AppConstants.NUM_ROUNDS)


class OnlyMetrics(Filter):
    """Sends the parameters of a model and the listed metrics: a filter of task results at a site.

    ``recipe.add_client_output_filter(OnlyMetrics(["accuracy"]), tasks=["train"])`` adds it to a job, and a site's
    ``privacy.json`` to all jobs there. ``metrics`` also lists the entries of a model's ``meta`` to send, such as
    "NUM_STEPS_CURRENT_ROUND", which models are weighed by. All else of a result stays at the site: other metrics,
    ``meta``, headers. Of an error only its code is sent. A result that is neither parameters nor metrics, such as
    statistics, is not sent.
    """

    def __init__(self, metrics: str | Sequence[str] = ()) -> None:
        super().__init__()
        self.metrics = [metrics] if isinstance(metrics, str) else list(metrics)  # a job carries it under this name

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Called by a recipe or a job; raises for tasks to which NVIDIA FLARE would not apply a filter."""
        if "*" in (tasks := kwargs.get("tasks") or "*"):
            words = "NVIDIA FLARE takes the tasks of a filter by exact names, such as tasks=['train', 'validate']; got"
            raise ConfigError(f"{words} {tasks}")
        super().add_to_fed_job(job, ctx, **kwargs)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The result to send; raises where it cannot be read, and NVIDIA FLARE then sends the code of an error."""
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)
        sent = self._listed(from_shareable(shareable)).to_shareable()
        for name in ROUNDS:
            if isinstance(value := shareable.get_header(name), int):
                sent.set_header(name, value)
        return sent

    def _listed(self, dxo: DXO) -> DXO:
        if dxo.data_kind == DataKind.METRICS:
            return DXO(dxo.data_kind, self._named(dxo.data))
        if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            raise ContentBlockedException(f"fedwarden: OnlyMetrics sends no results of kind {dxo.data_kind}")
        metrics = dxo.meta.get(MetaKey.INITIAL_METRICS)
        told = {} if metrics is None else {MetaKey.INITIAL_METRICS: self._named(metrics)}
        return DXO(dxo.data_kind, dxo.data, {**self._named(dxo.meta), **told})

    def _named(self, values: dict[str, object]) -> dict[str, object]:
        return {name: value for name, value in values.items() if name in self.metrics}
