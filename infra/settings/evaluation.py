"""Settings of the held-out evaluation, its gate and its judge."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from infra.settings.section import Address, RequestSecret, Section


class Judge(Section):
    kind: Literal["reference", "kept", "openai"] = "reference"
    """reference: similarity to the original code; kept: the characters of the completion that stand in it, over those of
    the longer of both; openai: an LLM behind an OpenAI-compatible endpoint."""
    url: str = ""
    """Base URL of the judge's endpoint, including /v1; empty for kind "reference"."""
    model: str = ""
    """Model name in requests to the judge; empty for kind "reference"."""
    api_key: RequestSecret | None = None
    """Bearer token for the judge; none: no Authorization header."""
    rubric: Path = Path("tasks/evaluation/judge/rubric.md")
    """File with the judge's instructions for kind "openai". Scores of another text are not reused."""
    concurrency: int = Field(8, ge=1)
    """Judgements at a time."""
    context_characters: int = Field(1_500, ge=0)
    """Characters of code before and after the completion in a request to the judge, each; rubric, code and answer must fit the
    model's context."""
    calibration_places: int = Field(60, ge=20)
    """Places at which each evaluation asks the judge to distinguish the true text from a corrupted one."""


MARGINS: Mapping[str, float] = {
    # Fall of the share of exact matches.
    "exact": 0.07,
    # Fall of the mean edit similarity, which is from 0 to 1.
    "edit_similarity": 0.06,
    # Fall of the right characters from the start, as a share of the champion's.
    "matching_characters": 0.35,
    # Fall of the share of places whose tests pass, where a benchmark has tests (pass@1).
    "passed": 0.085,
    # Fall of the judge's mean score, which is from 0 to 10.
    "judged": 0.58,
    # Rise of the share of completions after which the file has more syntax errors than with the true text.
    "syntax": 0.1,
    # Rise of the share of empty completions.
    "empty": 0.04,
    # Fall of the mean length, as a share of the champion's.
    "shorter": 0.35,
    # Rise of the characters beyond the true text, as a share of the true texts' length.
    "longer": 0.15,
    # Rise of the share of completions with a comment.
    "comments": 0.04,
    # Rise of the mean share of repeated runs of three tokens in a completion.
    "repetition": 0.03,
    # Fall of the entropy of all completions, in bits.
    "variety": 0.4,
    # Fall of the mean edit similarity within a slice: a set, a project, a language, a length of the true text, a place in the
    # line.
    "slices": 0.13,
}
"""How much worse than the champion a candidate may be at most, where the settings name no other margin. With 300 places these let
nine of ten equal candidates pass. The errors fall with the square root of the places."""
UNSET = ("silent", "drift")
"""Guardrails without a margin, which hold only where the settings name one. silent: fall of the share of silence where nothing
should be written; without a margin it is only reported, since few positions show little. drift: rise of the candidate's
log-probability of its own completions above the champion's, in nats a token; it takes a forward pass of the champion over the
candidate's completions."""


class Gate(Section):
    alpha: float = Field(0.025, gt=0, lt=0.5)
    """One-sided level of each guardrail's bounds. At this one, at most 5 % of candidates that are worse by one margin pass
    (`tabloop bench gate`): the bounds are approximations."""
    min_places: int = Field(200, ge=2)
    """Minimum number of places for a verdict; with fewer the candidate is undecided."""
    slice_margins: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Margins of single slices in place of margins.slices, by their names in evaluation.json: {"language: go" = 0.2}."""
    margins: dict[str, Annotated[float, Field(gt=0)]] = Field(default={}, validate_default=True)
    """Margins of single guardrails in place of those of MARGINS (infra/settings/evaluation.py): {exact = 0.03} allows the share
    of exact matches to fall by 0.03. A candidate must surely be within every margin."""

    @field_validator("margins", mode="before")
    @classmethod
    def _complete(cls, given: Mapping[str, float | None]) -> dict[str, float | None]:
        if unknown := sorted(given.keys() - MARGINS.keys() - set(UNSET)):
            raise ValueError(f"{unknown[0]!r}: expected one of {', '.join((*MARGINS, *UNSET))}")
        return {**MARGINS, **{name: margin for name, margin in given.items() if margin is not None}}


class HeldOut(Section):
    """A held-out set (infra/docs/how/held-out.md)."""

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
    silent: float = Field(0.1, ge=0, le=1)
    """Places at which nothing should be written, beside the others and as a share of their number: ends of finished lines; in the
    team's set, places where developers wrote nothing. Benchmarks have none."""
    languages: tuple[str, ...] = ()
    """Languages (extensions, as `py`) of the places; empty: all."""
    several_lines: float = Field(0.0, ge=0, le=1)
    """Share of a directory's places whose removed text covers one to three further lines."""

    @model_validator(mode="after")
    def _has_its_path(self) -> Self:
        if (self.path is None) != (self.kind in ("packages", "team")):
            expected = "no path" if self.kind in ("packages", "team") else "the path of a directory or a file"
            raise ValueError(f"set {self.name!r} of kind {self.kind!r}: path = {str(self.path)!r}, expected {expected}")
        return self


class Evaluate(Section):
    engine: Literal["own", "slot"] = "own"
    """Where candidate and champion complete the held-out places. own: an engine of the evaluation's own, at engine_url; slot: the
    engine of serving.engines that does not hold the champion, which gets its weights back afterwards."""
    engine_url: Address = "http://127.0.0.1:18102"
    """URL of the evaluation's own engine (`python -m serving.engine --evaluation`)."""
    shares_disk: bool = True
    """Whether the engine has train.folder on its disk, and reads checkpoints there. False: it fetches them from the object store
    to a disk of its own, and a candidate is uploaded before its evaluation instead of after it."""
    engine_host: str = ""
    """Address on which that engine listens, at the URL's port; empty: the URL's host (serving.engine_host)."""
    engine_token: RequestSecret | None = None
    """Bearer token of the evaluation's own engine; none: it does not start. The local stack generates one."""
    stop: tuple[str, ...] = ()
    """Stop strings of the team's editors: a completion is scored up to the first, as it is served. Empty: up to the end token or
    the maximum of tokens."""
    samples: int = Field(400, ge=10)
    """Number of held-out positions to score a candidate on."""
    seed: int = 1
    """Seed of the choice of positions."""
    sets: tuple[HeldOut, ...] = (HeldOut(name="packages", kind="packages"),)
    """The sets that a candidate is scored on. A team that writes another language than Python names its own code here."""
    gate: Gate = Gate()
    """The offline gate between training and the A/B test."""
    judge: Judge = Judge()
    """The judge that scores completions."""
