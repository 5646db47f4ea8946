"""Grouped samples from the shipped model: groups, rewards, advantages, and the job that trains on them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from evals import judge as judges
from evals.generation import Generator
from evals.judge import Failed, Item, Judgement, ReferenceJudge
from evals.positions import Position
from infra import settings as settings_
from infra.records import Sample
from infra.settings import LOCAL
from infra.store import from_parquet
from tasks import groups
from tasks.trainer.job import Job

PLACES = [
    Position("a.py", 0, "import ", "\n\n\ndef main():\n    os.remove('x')\n", "os"),
    Position("a.py", 0, "def add(a, b):\n    return ", "\n", "a + b"),
    Position("a.py", 0, "for i in range", ":\n    print(i)\n", "(10)"),
]
GROUP = settings_.load(LOCAL, {}).model_copy(
    update={"reward": settings_.load(LOCAL, {}).reward.model_copy(update={"estimator": "group"})}
)


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(settings_.path(GROUP.model.base), GROUP.model)


def test_completions_of_a_place_are_judged_against_one_another(generator: Generator) -> None:
    made = groups.sample_groups(generator, ReferenceJudge(), PLACES, 4, GROUP, seed=1)
    assert (len(made.samples), made.failed) == (12, 0)
    for first in (0, 4, 8):
        group = made.samples[first : first + 4]
        assert len({s.prompt_token_ids for s in group}) == 1
        assert sum(s.advantage for s in group) == pytest.approx(0, abs=1e-9)
        assert len({s.reward for s in group}) == 1 or max(group, key=lambda s: s.advantage).reward == max(s.reward for s in group)
    assert len({s.token_ids for s in made.samples}) > 3
    assert any(s.advantage for s in made.samples)
    assert all(0 <= s.reward <= 1 for s in made.samples)


class FailsOnce(ReferenceJudge):
    """Cannot judge the sixth completion."""

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        return [Failed("timeout", "") if i == 5 else found for i, found in enumerate(super().score(items))]


def test_a_group_that_was_not_judged_whole_is_left_out(generator: Generator) -> None:
    made = groups.sample_groups(generator, FailsOnce(), PLACES, 4, GROUP, seed=1)
    assert (len(made.samples), made.failed) == (8, 1)


def test_the_command_writes_samples_and_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert groups.main(["--out", str(tmp_path), "--positions", "2", "--group", "3"]) == 0
    job = Job.model_validate_json((tmp_path / "job.json").read_text())
    samples = from_parquet(job.samples.read_bytes(), Sample)
    assert len(samples) == 6
    assert {s.policy_version for s in samples} == {job.current_version}, "log-probability agreement is measured on them"
    assert f"--job {tmp_path / 'job.json'}" in capsys.readouterr().out


def test_without_a_judgement_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Never(ReferenceJudge):
        def score(self, items: Sequence[Item]) -> list[Judgement]:
            return [Failed("unavailable", "")] * len(items)

    monkeypatch.setattr(judges, "build", lambda settings: Never())
    assert groups.main(["--out", str(tmp_path), "--positions", "1", "--group", "2"]) == 1
    assert "2 judgements failed" in capsys.readouterr().err
