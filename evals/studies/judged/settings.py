"""Settings of the study with a judge as the user: those of the project, and a section `judged`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from infra import settings as configuration
from infra.settings import Settings
from infra.settings.evaluation import Judge
from infra.settings.section import Section


def name_of(judge: Judge) -> str:
    """Return the name of a judge's model, or the kind of an embedded judge."""
    return judge.model if judge.kind == "openai" else judge.kind


def same(one: Judge, other: Judge) -> bool:
    """Return whether two judges are the same model, wherever it is served, or the same embedded score."""
    return (one.kind, name_of(one).casefold()) == (other.kind, name_of(other).casefold())


class Judged(Section):
    judge: Judge = Judge(kind="kept")
    """The judge that rewards: it accepts or rejects, and scores the groups of GRPO. Never `evaluate.judge`, which scores."""
    temperature: float = Field(0.8, gt=0, le=2)
    """Temperature of the completions that the judge rewards."""
    threshold: float = Field(6.0, gt=0, le=10)
    """Score from 0 to 10 from which on the user accepts."""
    file: Path | None = None
    """File of code-fim-v2 or of RLinf's rows (JSONL or Parquet); None: positions in held-out packages."""
    languages: tuple[str, ...] = ("py",)
    """Languages (extensions) of the file's rows that are used; empty: all."""
    min_truth: int = Field(10, ge=1)
    """Fewest characters, without blanks, of a position's true text."""
    train_places: int = Field(600, ge=1)
    """Training positions of all cycles."""
    test_places: int = Field(300, ge=2)
    """Test positions, in other files."""
    cycles: int = Field(2, ge=1)
    """Updates, one after the other; each takes its part of the training positions."""
    epochs: int = Field(1, ge=1)
    """Passes over the training positions, spread over the cycles."""
    group: int = Field(8, ge=2)
    """Completions at a position for GRPO, which takes as many completions in all."""
    models: tuple[Path, ...] = ()
    """Other checkpoints that are scored beside the base, in Hugging Face layout."""
    whole_text: bool = False
    """Whether completions have further lines; else they end with their first line."""
    dtype: str = Field("float32", pattern="^(float32|bfloat16)$")
    """Data type in which completions are generated."""
    folder: Path = Path("var/judged")
    """Folder of samples, jobs, checkpoints and results."""


class StudySettings(Settings):
    """The settings of the project and of the study."""

    judged: Judged = Judged()
    """The judge as the user."""

    @model_validator(mode="after")
    def _scores_by_another_judge_than_it_rewards_by(self) -> Self:
        scores, rewards = self.evaluate.judge, self.judged.judge
        if same(scores, rewards):
            raise ValueError(
                f"judged.judge and evaluate.judge are both {name_of(scores)}: a model is not scored by the judge that it "
                "learnt to please. Choose another model or kind for one of them, e.g. judged.judge.kind = kept"
            )
        return self


def load(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> StudySettings:
    """Return the settings of a file, as `infra.settings.load`, with the section `judged`.

    Raises SettingsError as `infra.settings.load`.
    """
    found = configuration.load(file, environment, StudySettings)
    assert isinstance(found, StudySettings)
    return found
