"""The samples of an update outside a cycle, and its costs."""

from pathlib import Path
from typing import Any

from evals.base_model.update import costs, rewarded, sample
from infra.settings.schema import Reward
from tasks.trainer.job import METRICS_NAME, Metrics, StepMetrics

STEP: dict[str, Any] = {name: 1 for name, field in StepMetrics.model_fields.items() if field.is_required()}


def test_costs_have_the_steps_in_which_each_kind_of_action_taught(tmp_path: Path) -> None:
    taught = STEP | {"drawn_clip_fraction": 0.2, "drawn_kl": 0.5, "drawn_effective_samples": 0.8}
    steps = [StepMetrics.model_validate(step) for step in (taught, taught | {"drawn_kl": 1.5}, STEP)]
    values: dict[str, Any] = {name: 0 for name, field in Metrics.model_fields.items() if field.is_required()}
    metrics = Metrics.model_validate(values | {"steps": steps, "notes": (), "seconds": {"update": 7.0}})
    (tmp_path / METRICS_NAME).write_text(metrics.model_dump_json())
    found = costs(tmp_path)
    assert found["steps with drawn actions"] == (2.0, "of 3") and found["KL from the behaviour of drawn actions"][0] == 1.0
    assert found["seconds of the update"] == (7.0, "s") and "steps with served actions" not in found


def test_without_silence_a_complete_line_is_no_sample() -> None:
    """The trainer refuses a sample without tokens."""
    rows = [sample("complete", (1, 2), settled_token_ids=(9,)), sample("written", (1, 2), settled_token_ids=(7, 9))]
    texts = {"complete": "\nreturn\n", "written": "x\n"}
    assert rewarded(rows, Reward(), settled=texts) == rows
    assert rewarded(rows, Reward(silence=False), settled=texts) == rows[1:]
