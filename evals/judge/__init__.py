"""Judges of completions: one module each, and `build`, which picks one by the settings."""

from evals.judge.base import Failed, FailureKind, Item, Judge, Judgement, Scored
from evals.judge.reference import ReferenceJudge
from infra.settings import schema

__all__ = ["Failed", "FailureKind", "Item", "Judge", "Judgement", "ReferenceJudge", "Scored", "build"]


def build(settings: schema.Judge) -> Judge:
    """Return the judge that `settings.kind` names."""
    if settings.kind == "openai":
        from evals.judge.openai import OpenAIJudge

        return OpenAIJudge(settings)
    return ReferenceJudge()
