"""Many runs of scenarios: kept as they come, and told in tables; the adversary's suite."""

from typing import TYPE_CHECKING

from ..core.late import modules

if TYPE_CHECKING:
    from . import attack_cases as attack_cases
    from . import attack_suite as attack_suite
    from . import runner as runner
    from . import tables as tables

__getattr__ = modules(__name__)
