"""The filter of a site: listed metrics leave it, and no others; tests/flare/test_job.py has it in a real job."""

import json

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.shareable import make_reply
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import Scope

from fedwarden.core.errors import ConfigError
from fedwarden.nvflare import OnlyMetrics

from .sites import STEPS, context

FOUND = {"accuracy": 0.5, "patients": 3.0}


def filtered(shareable, *names):
    return OnlyMetrics(names).process(shareable, context())


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_of_a_model_its_parameters_and_what_is_listed_leave_the_site(kind):
    params = {"w": np.ones(2, np.float32)}
    meta = {STEPS: 10, "path": "/data/patients.csv", "site_name": "St Mary"}
    sent = FLModelUtils.to_shareable(FLModel(kind, params, metrics=FOUND, meta=meta, current_round=2))
    sent.set_header("debug", "patient Smith")
    sent["more"] = "patient Smith"
    came = filtered(sent, "accuracy", STEPS)
    assert not [word for word in ("patient", "St Mary") if word in str(came)]
    model = FLModelUtils.from_shareable(came)
    assert (model.params_type, model.params, model.current_round) == (kind, params, 2)
    assert model.metrics == {"accuracy": 0.5}
    assert model.meta == {STEPS: 10, "initial_metrics": {"accuracy": 0.5}}


@pytest.mark.parametrize("listed", ["accuracy", ""])
def test_of_an_evaluation_the_listed_metrics_leave_the_site(listed):
    sent = FLModelUtils.to_shareable(FLModel(metrics=FOUND, meta={"path": "/data"}))
    model = FLModelUtils.from_shareable(OnlyMetrics(listed).process(sent, context()))
    assert (model.params, model.metrics, model.meta) == (None, {"accuracy": 0.5} if listed else {}, {})


def test_of_an_error_its_code_leaves_the_site():
    came = filtered(make_reply("EXECUTION_EXCEPTION", {"why": "patient Smith"}), "why")
    assert came == make_reply("EXECUTION_EXCEPTION")


@pytest.mark.parametrize("kind", [DataKind.STATISTICS, DataKind.APP_DEFINED, DataKind.FL_MODEL])
def test_other_results_do_not_leave_the_site(kind):
    with pytest.raises(ContentBlockedException, match="sends no results of kind"):
        filtered(DXO(kind, FOUND).to_shareable(), "accuracy")


@pytest.mark.parametrize("tasks", [None, ["*"]])
def test_tasks_to_which_a_filter_would_not_be_applied_are_refused(tasks, tmp_path, monkeypatch):
    """NVIDIA FLARE compares their names, without patterns."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")
    recipe = NumpyFedAvgRecipe(model=[[1.0]], min_clients=2, num_rounds=1, train_script="client.py")
    with pytest.raises(ConfigError, match=r"such as tasks=\['train', 'validate'\]"):
        recipe.add_client_output_filter(OnlyMetrics(), tasks=tasks)


def test_a_site_may_filter_the_results_of_every_job(tmp_path):
    one = {"path": "fedwarden.nvflare.privacy.OnlyMetrics", "args": {"metrics": ["accuracy", STEPS]}}
    told = {"scopes": [{"name": "site", "task_result_filters": [one]}], "default_scope": "site"}
    for folder in ("startup", "local"):
        (tmp_path / folder).mkdir()
    (tmp_path / "local" / "privacy.json").write_text(json.dumps(told))
    manager = create_privacy_manager(Workspace(str(tmp_path), "site-1"), names_only=False)
    here = context()
    here.set_prop(FLContextKey.SCOPE_OBJECT, manager.default_scope, private=True, sticky=False)
    sent = FLModelUtils.to_shareable(FLModel(metrics=FOUND))
    came = apply_filters(Scope.TASK_RESULT_FILTERS_NAME, sent, here, {}, "any", FilterKey.OUT)
    assert FLModelUtils.from_shareable(came).metrics == {"accuracy": 0.5}
