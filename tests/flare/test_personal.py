"""Parameters that stay at the sites: not judged, not combined, and the server's values are kept."""

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.app_common.abstract.fl_model import ParamsType

from fedwarden.nvflare import GuardedAggregator

from .sites import BAD, SITES, answer, model, sent
from .test_aggregator import combine, guarded, rejected

KINDS = [ParamsType.FULL, ParamsType.DIFF]
ODD = {
    "its own": lambda bias: bias + 5.0,
    "nan": lambda bias: bias * np.nan,
    "another shape": lambda bias: np.ones(3),
    "int8 without a scale": lambda bias: np.ones(4, np.int8),
    "none": None,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("odd", ODD)
def test_whatever_a_site_sends_there_changes_nothing(odd, kind):
    made = {}
    for change in (lambda bias: bias, ODD[odd]):
        answers = []
        for site in SITES:
            params = sent(site, model(), kind)
            if site == BAD and change is None:
                del params["fc.bias"]
            elif site == BAD:
                params["fc.bias"] = change(params["fc.bias"])
            answers.append(answer(site, params, kind))
        aggregator = guarded(personal="*.bias")
        found = combine(aggregator, answers)
        assert rejected(aggregator) == set()
        kept = {k: model()[k] + v if kind is ParamsType.DIFF else v for k, v in found.params.items()}
        made[change] = {**model(), **kept}
    first, second = made.values()
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)
        assert (value == model()[name]).all() == (name == "fc.bias")


def test_a_pattern_that_names_nothing_shares_nothing_and_says_why(caplog):
    aggregator = guarded(personal=["fc.bais"])
    made = combine(aggregator, [answer(site, sent(site, model(), ParamsType.FULL)) for site in SITES])
    np.testing.assert_array_equal(made.params["fc.weight"], model()["fc.weight"])
    assert "personal: no array of the model is 'fc.bais'; did you mean 'fc.bias'?" in str(aggregator.record.notes[-1])


@pytest.mark.parametrize(
    ("options", "names", "says"),
    [
        ({"personal": ["fc.bais"]}, {}, "did you mean 'fc.bias'?"),
        (
            {"personal": ["*.lora_B"], "adapters": "lora"},
            {"q.lora_A": np.ones((2, 4), np.float32), "q.lora_B": np.ones((3, 2), np.float32)},
            "'q.lora_B' stays at the clients and its partner 'q.lora_A' does not",
        ),
    ],
)
def test_what_the_model_does_not_fit_ends_the_job_before_any_site_trains(options, names, says, monkeypatch):
    told = []
    monkeypatch.setattr(GuardedAggregator, "system_panic", lambda self, line, fl_ctx: told.append(line))
    guarded({**model(), **names}, **options)
    (line,) = told
    assert says in line
    assert "\n" not in line
