"""Options of an attack that are outside of their range end in one message with the numbers."""

import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adaptive", {"limit": 0.0}, "limit must be positive and steps at least 1"),
        ("adaptive", {"steps": 0}, "limit must be positive and steps at least 1"),
        ("alie", {"knowledge": "some"}, "knowledge is 'own' or 'all'; got 'some'"),
        ("backdoor", {"corner": "middle"}, "corner is one of top-left, .*; got 'middle'"),
        ("backdoor", {"fraction": 2.0}, r"fraction lies in \[0, 1\]; got 2.0"),
        ("backdoor", {"size": 0}, "size is at least 1 pixel; got 0"),
        ("blur", {"sigma": 0.0}, "sigma must be positive; got 0.0"),
        ("corruption", {"sigma": -1.0}, "sigma must be positive; got -1.0"),
        ("dba", {"bars": [0, 4]}, r"bars are numbered from 0 to 3; got \[0, 4\]"),
        ("dba", {"fraction": 1.5}, r"fraction lies in \[0, 1\]; got 1.5"),
        ("dba", {"gap": -1}, "size is at least 1 pixel and gap not below 0; got 3 and -1"),
        ("dba", {"size": 0}, "size is at least 1 pixel and gap not below 0; got 0 and 1"),
        ("edge_case", {"fraction": -1.0}, r"fraction lies in \[0, 1\]; got -1.0"),
        ("edge_case", {"rare": "odd"}, "rare is 'negative' or 'tail'; got 'odd'"),
        ("edge_case", {"source": 2, "target": 2}, "source and target are two classes; got 2 twice"),
        ("free_rider", {"mode": "sleep"}, "mode is 'previous' or 'zero'; got 'sleep'"),
        ("gaussian", {"sigma": -1.0}, "sigma is a deviation, not below 0; got -1.0"),
        ("ipm", {"knowledge": "none"}, "knowledge is"),
        ("label_flip", {"fraction": 1.1}, r"fraction lies in \[0, 1\]; got 1.1"),
        ("label_flip", {"mode": "constant", "source": 3}, "source is for mode 'targeted'"),
        ("label_flip", {"mode": "random"}, "mode is 'derangement', 'pairwise', 'constant' or 'targeted'; got 'random'"),
        ("label_flip", {"mode": "targeted", "source": 2, "target": 2}, "two classes; got 2 twice"),
        ("label_flip", {"source": 3}, "source is for mode 'targeted'"),
        ("label_flip", {"target": 7}, "target is for the modes 'constant' and 'targeted'"),
        ("label_shift", {"even": -0.1}, r"even and exchange lie in \[0, 1\]"),
        ("label_shift", {"exchange": 1.1}, r"even and exchange lie in \[0, 1\]"),
        ("min_max", {"direction": "up"}, "direction is 'unit', 'std' or 'sign'; got 'up'"),
        ("min_sum", {"direction": "up"}, "direction is"),
        ("neurotoxin", {"top": -0.1}, r"top lies in \[0, 1\)"),
        ("neurotoxin", {"top": 1.0}, r"top lies in \[0, 1\)"),
        ("noised", {"ratio": 0.0}, None),
        ("quantised", {"bits": 1}, None),
        ("strongest", {"limit": 0.0}, "limit must be positive and steps not below 0"),
        ("strongest", {"steps": -1}, "limit must be positive and steps not below 0"),
        ("token_replacement", {"fraction": 1.5}, r"fraction lies in \[0, 1\]; got 1.5"),
        ("token_replacement", {"vocabulary": 0}, "at least 1; got 0"),
    ],
)
def test_options_outside_of_their_range(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make("attack", name, **options)
