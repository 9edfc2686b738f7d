"""The documented privacy.json of a site, read by NVFlare itself."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("nvflare.apis", reason="nvflare is not installed")
from flare import Trainer, context, task_data
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.signal import Signal
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import Scope

from sqsgd.nvflare import SqsgdFilter, shareables

PAGE = (Path(__file__).parents[2] / "docs/nvflare.md").read_text()


def test_a_job_without_the_filter_is_guarded_by_the_site(tmp_path):
    (written,) = [text for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "scopes" in text]
    policy = json.loads(written)
    policy["scopes"][0]["task_data_filters"][0]["args"]["state_dir"] = str(tmp_path / "state")
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    (tmp_path / "local/privacy.json").write_text(json.dumps(policy))
    scope = create_privacy_manager(Workspace(str(tmp_path)), names_only=False).get_scope(None)
    (guard,) = scope.task_data_filters[FilterKey.IN]
    assert isinstance(guard, SqsgdFilter)

    trainer = Trainer()
    fl_ctx = context(trainer)
    fl_ctx.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True, sticky=False)
    data = apply_filters(Scope.TASK_DATA_FILTERS_NAME, task_data(), fl_ctx, {}, "train", FilterKey.IN)
    assert shareables.REPORT in trainer.execute("train", data, fl_ctx, Signal())
    assert (tmp_path / "state/ledger").exists()
