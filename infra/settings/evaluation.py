"""Settings of the held-out evaluation and its judge."""

from typing import Literal

from pydantic import Field, SecretStr

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


class Evaluate(Section):
    samples: int = Field(400, ge=10)
    """Number of held-out positions to score a candidate on."""
    seed: int = 1
    """Seed of the choice of positions."""
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
