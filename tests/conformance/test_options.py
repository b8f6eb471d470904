"""Options that are outside of their range end in one message with the numbers."""

import math

import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("attack adaptive", {"limit": 0.0}, "limit must be positive and steps at least 1"),
        ("attack alie", {"knowledge": "some"}, "knowledge is 'own' or 'all'; got 'some'"),
        ("attack backdoor", {"corner": "middle"}, "corner is 'top-left', .*; got 'middle'"),
        ("attack backdoor", {"fraction": 2.0}, r"fraction lies in \[0, 1\]; got 2.0"),
        ("attack backdoor", {"size": 0}, "size is at least 1 pixel; got 0"),
        ("attack blur", {"sigma": 0.0}, "sigma must be positive; got 0.0"),
        ("attack dba", {"bars": [0, 4]}, r"bars are numbered from 0 to 3; got \[0, 4\]"),
        ("attack dba", {"gap": -1}, "size is at least 1 pixel and gap not below 0; got 3 and -1"),
        ("attack edge_case", {"rare": "odd"}, "rare is 'negative' or 'tail'; got 'odd'"),
        ("attack edge_case", {"source": 2, "target": 2}, "source and target are two classes; got 2 twice"),
        ("attack free_rider", {"mode": "sleep"}, "mode is 'previous' or 'zero'; got 'sleep'"),
        ("attack gaussian", {"sigma": -1.0}, "sigma is a deviation, not below 0; got -1.0"),
        ("attack label_flip", {"fraction": 1.1}, r"fraction lies in \[0, 1\]; got 1.1"),
        ("attack label_flip", {"mode": "constant", "source": 3}, "source is for mode 'targeted'"),
        (
            "attack label_flip",
            {"mode": "random"},
            "mode is 'derangement', 'pairwise', 'constant' or 'targeted'; got 'random'",
        ),
        ("attack label_flip", {"mode": "targeted", "source": 2, "target": 2}, "two classes; got 2 twice"),
        ("attack label_flip", {"source": 3}, "source is for mode 'targeted'"),
        ("attack label_flip", {"target": 7}, "target is for the modes 'constant' and 'targeted'"),
        ("attack label_shift", {"even": -0.1}, r"even and exchange lie in \[0, 1\]"),
        ("attack min_max", {"direction": "up"}, "direction is 'unit', 'std' or 'sign'; got 'up'"),
        ("attack neurotoxin", {"top": 1.0}, r"top lies in \[0, 1\)"),
        ("attack noised", {"ratio": 0.0}, None),
        ("attack quantised", {"bits": 1}, None),
        ("attack strongest", {"steps": -1}, "limit must be positive and steps not below 0"),
        ("attack token_replacement", {"fraction": 1.5}, r"fraction lies in \[0, 1\]; got 1.5"),
        ("attack token_replacement", {"vocabulary": 0}, "at least 1; got 0"),
        ("history capital", {"clip": 0.1, "effect": 0.1}, "needs 0 <= effect < clip and 0 < stake < 1"),
        ("history capital", {"stake": 1.0}, "0 < stake < 1"),
        ("history evidence", {"alpha": 1.0}, "needs 0 < alpha < 1"),
        ("history evidence", {"effect": 0.0}, "needs 0 < alpha < 1"),
        ("history evidence", {"forget": -0.1}, "forget"),
        ("history gathered", {"forget": -0.1}, "forget"),
        ("partition given", {"first": -1}, None),
        ("partition shards", {"per_client": 0}, None),
        ("policy down_weight", {"limit": 0.0}, "limit must be positive; got 0.0"),
        ("policy quarantine", {"parole": 0}, "parole is a number of clean rounds, at least 1; got 0"),
        ("policy turns", {"few": 0}, "needs most and share in"),
        ("policy turns", {"most": 1.1}, "needs most and share in"),
        ("rule cantelli", {"alpha": 0.0}, r"alpha lies in \(0, 1\); got 0.0"),
        ("rule gaussian", {"alpha": 0.5}, r"alpha lies in \(0, 0.5\); got 0.5"),
        ("rule k_sigma", {"k": math.nan}, "k must be positive"),
        ("signal divergence", {"affinity": "angle"}, "affinity is 'absolute', 'relative' or 'cosine'; got 'angle'"),
        ("signal divergence", {"gamma": -1.0}, "gamma .* at least 0; got -1.0"),
        ("signal divergence", {"probe": 1}, "at least 2 samples to compare; got 1"),
        ("signal relative_distance", {"excuse": 0.5}, "excuse is a factor of at least 1; got 0.5"),
    ],
)
def test_options_outside_of_their_range(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(*name.split(), **options)
