"""What a site of NVIDIA FLARE sent: under which name, and what can be read of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from ..guard.arrays import Unfit
from ..guard.contributions import Contribution, usable

UNKNOWN = "unknown"


def site_of(model: Any) -> str:
    """The name that the server gives a site; it is the server that writes it, not the site.

    >>> site_of(FLModel(params={"w": 1.0}, meta={"client_name": "site-1"}))
    'site-1'
    """
    meta = getattr(model, "meta", None)
    name = meta.get("client_name") if isinstance(meta, Mapping) else None
    if not isinstance(name, str) or not name:
        return UNKNOWN
    return usable(name)


def contribution(site: str, model: Any, key: str, listed: Collection[str] | None = None) -> Contribution:
    """What a site sent, or :class:`Unfit`; where it gives no count it counts 1, as in NVIDIA FLARE's FedAvg."""
    if not isinstance(model, FLModel):
        raise Unfit.of("not_a_model", sent=type(model).__name__)
    if model.params is None:
        raise Unfit.of("sent_nothing")
    count = model.meta.get(key) if isinstance(model.meta, Mapping) else None
    whole = ParamsType(model.params_type) is ParamsType.FULL
    return Contribution.of(site, whole, model.params, count, model.metrics, listed)
