"""The pages by kind. Each has ``show`` (its parts), ``version`` (what tells two states apart) and ``register``."""

from __future__ import annotations

from types import ModuleType

from . import audit, client, compare, run, runs, whatif

PAGES: dict[str, ModuleType] = {
    "runs": runs, "compare": compare, "run": run, "client": client, "what-if": whatif, "audit": audit
}  # fmt: skip
