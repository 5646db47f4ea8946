"""Settings of the held-out evaluation and its judge."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from infra.settings.section import Section


class Judge(Section):
    kind: Literal["reference", "openai"] = "reference"
    """reference: similarity to the original code; openai: an LLM behind an OpenAI-compatible endpoint."""
    url: str = ""
    """Base URL of the judge's endpoint, including /v1; empty for kind "reference"."""
    model: str = ""
    """Model name in requests to the judge; empty for kind "reference"."""
    api_key: SecretStr | None = None
    """Bearer token for the judge; none: no Authorization header."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Timeout of one judgement, in seconds."""


class HeldOut(Section):
    """A held-out set (infra/docs/evaluation.md, "Held-out sets")."""

    name: str = Field(pattern=r"^[\w.-]+$")
    """Name of the set, as in reports."""
    kind: Literal["packages", "directory", "team", "code_fim", "humaneval_infilling", "safim", "crosscodeeval"]
    """packages: installed packages that the shipped base model never saw; directory: any directory of code; team: what the team
    itself wrote; the others: a public benchmark from local files."""
    path: Path | None = None
    """Directory of the code, or file of the benchmark (JSONL or Parquet); none for packages and team."""
    places: int = Field(0, ge=0)
    """Number of places; 0: `evaluate.samples`, and of a benchmark all."""
    seed: int = 1
    """Seed of the choice of places."""
    key: str = "tabloop"
    """Key of the hash that draws the scored files or repositories; with another key, others are scored."""
    share: float = Field(0.25, ge=0, le=1)
    """Share of a directory's files or repositories that is scored. Of the team's own set, share of the files that training never
    touches, where requests name a file; 0.05 costs as much of the labels."""
    split: Literal["file", "repository"] = "file"
    """Whether files or whole repositories (folders with a `.git`) of a directory are drawn."""
    several_lines: float = Field(0.0, ge=0, le=1)
    """Share of a directory's places whose removed text covers one to three further lines."""

    @model_validator(mode="after")
    def _has_its_path(self) -> Self:
        if (self.path is None) != (self.kind in ("packages", "team")):
            expected = "no path" if self.kind in ("packages", "team") else "the path of a directory or a file"
            raise ValueError(f"set {self.name!r} of kind {self.kind!r}: path = {str(self.path)!r}, expected {expected}")
        return self


class Evaluate(Section):
    samples: int = Field(400, ge=10)
    """Number of held-out positions to score a candidate on."""
    seed: int = 1
    """Seed of the choice of positions."""
    sets: tuple[HeldOut, ...] = (HeldOut(name="packages", kind="packages"),)
    """The sets that a candidate is scored on. A team that writes another language than Python names its own code here."""
    max_drop: float = Field(0.05, ge=0)
    """Maximum drop of the judge's mean score below the champion's, as a share of the judge's scale; beyond it the candidate is
    refused."""
    min_length: float = Field(0.5, ge=0)
    """Minimum mean length of a candidate's completions, as a multiple of the champion's; 0: no minimum."""
    max_empty_rise: float = Field(0.15, ge=0)
    """Maximum rise of the share of positions with nothing to show above the champion's."""
    max_judge_failures: float = Field(0.1, ge=0, le=1)
    """Maximum share of positions the judge may fail on; beyond it the evaluation fails."""
    judge: Judge = Judge()
    """The judge that scores completions."""
