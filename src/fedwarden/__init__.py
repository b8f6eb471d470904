"""fedwarden watches, guards and audits federated learning."""

from __future__ import annotations

from .admission import Admission, Reply
from .core.aggregation import aggregate
from .core.errors import ConfigError, FedwardenError, MissingExtra
from .core.registry import names, register
from .core.stats import robust_z
from .core.types import Aggregate, Cohort, Outcome, Rejection, RoundRecord, Verdict, WatchRecord
from .core.updates import Updates
from .history.pid import PID
from .rules.gesd import GESD, gesd
from .rules.robust import RobustZ
from .rules.sigma import Cantelli, Gaussian, KSigma
from .warden import Warden, Watch

__version__ = "0.1.0"

__all__ = [
    "GESD", "PID", "Admission", "Aggregate", "Cantelli", "Cohort", "ConfigError", "FedwardenError", "Gaussian",
    "KSigma", "MissingExtra", "Outcome", "Rejection", "Reply", "RobustZ", "RoundRecord", "Updates", "Verdict",
    "Warden", "Watch", "WatchRecord", "aggregate", "gesd", "names", "register", "robust_z",
]  # fmt: skip
