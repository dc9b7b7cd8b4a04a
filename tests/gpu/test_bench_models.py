"""The benchmark of whole models on a real GPU, with a tiny one."""

from pathlib import Path

import pytest
from modelbench.labels import LABELS
from modelbench.records import read
from modelbench.scheduling import Plan, measure
from modelbench.summary import summarize

pytestmark = pytest.mark.gpu


def test_tiny_models_are_timed_in_cuda_graphs(tmp_path: Path) -> None:
    """With and without gradients, all labels are compiled, replayed in CUDA graphs, and right."""
    models, out = ["dlrm", "dlrm-training"], tmp_path / "results.jsonl"
    plan = Plan(models, dict.fromkeys(LABELS, 1), out, tmp_path, "cuda", True, 4, True, float("inf"), 400, False)
    assert measure(plan) == 0
    summaries = summarize(read([out]))
    assert [model.name for model in summaries] == models
    for model in summaries:
        assert set(model.labels) == {label.name for label in LABELS}
        assert model.wrong() == []
