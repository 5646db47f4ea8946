"""Grouped samples from the shipped model: groups, rewards, advantages, and the training job."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from evals.studies.judged import cycles
from infra import settings as settings_
from infra.records import Sample
from infra.settings import DEMO
from infra.storage.store import from_parquet
from tasks.evaluation.judge import Failed, Item, Judgement, ReferenceJudge
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position
from tasks.trainer.job import Job
from tasks.trainer.update.targets import taught_by

PLACES = [
    Position("a.py", 0, "import ", "\n\n\ndef main():\n    os.remove('x')\n", "os"),
    Position("a.py", 0, "def add(a, b):\n    return ", "\n", "a + b"),
    Position("a.py", 0, "for i in range", ":\n    print(i)\n", "(10)"),
]
GROUP = settings_.load(DEMO, {})


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(settings_.path(GROUP.model.base), GROUP.model)


def test_advantages_compare_the_completions_of_one_place(generator: Generator) -> None:
    grouped = cycles.sample_groups(generator, ReferenceJudge(), PLACES, 4, GROUP, seed=1)
    assert (len(grouped.samples), grouped.failed.total()) == (12, 0)
    for start in (0, 4, 8):
        group = grouped.samples[start : start + 4]
        assert len({s.prompt_token_ids for s in group}) == 1
        assert sum(s.advantage for s in group) == pytest.approx(0, abs=1e-9)
        assert len({s.reward for s in group}) == 1 or max(group, key=lambda s: s.advantage).reward == max(s.reward for s in group)
    assert len({s.token_ids for s in grouped.samples}) > 3
    assert any(s.advantage for s in grouped.samples)
    assert all(0 <= s.reward <= 1 for s in grouped.samples)


class FailsOnce(ReferenceJudge):
    """A judge that fails on the sixth completion."""

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        return [Failed("timeout", "") if i == 5 else judgement for i, judgement in enumerate(super().score(items))]


def test_a_group_with_a_failed_judgement_has_no_samples(generator: Generator) -> None:
    grouped = cycles.sample_groups(generator, FailsOnce(), PLACES, 4, GROUP, seed=1)
    assert (len(grouped.samples), grouped.failed.total()) == (8, 1)


def test_samples_and_a_job_are_written(generator: Generator, tmp_path: Path) -> None:
    grouped = cycles.sample_groups(generator, ReferenceJudge(), PLACES[:2], 3, GROUP, seed=1)
    file = cycles.write_update(tmp_path / "update", settings_.path(GROUP.model.base), grouped.samples, GROUP)
    job = Job.model_validate_json(file.read_text())
    samples = from_parquet(job.samples.read_bytes(), Sample)
    assert len(samples) == 6
    assert len(taught_by(samples, job)) == 6, "the trainer would refuse a job of which nothing teaches"
    assert {s.policy_version for s in samples} == {job.current_version}, (
        "the trainer measures the agreement of log-probabilities on them"
    )
    assert file == tmp_path / "update" / "job.json"
    assert job.minibatch == round(GROUP.train.minibatch / 3), "as many completions as before, in places of three"


def test_failures_are_counted_if_all_judgements_fail(generator: Generator) -> None:
    class AlwaysFails(ReferenceJudge):
        def score(self, items: Sequence[Item]) -> list[Judgement]:
            return [Failed("unavailable", "")] * len(items)

    grouped = cycles.sample_groups(generator, AlwaysFails(), PLACES[:1], 2, GROUP, seed=1)
    assert (grouped.samples, grouped.failed.total()) == ((), 2)
