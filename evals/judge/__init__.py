"""Judges of completions: a module each, and one builder that picks by settings."""

from evals.judge.base import Failed, FailureKind, Item, Judge, Judgement, Scored
from evals.judge.reference import ReferenceJudge
from infra.settings import schema

__all__ = ["Failed", "FailureKind", "Item", "Judge", "Judgement", "ReferenceJudge", "Scored", "build"]


def build(settings: schema.Judge) -> Judge:
    """The judge that the settings name."""
    if settings.kind == "openai":
        from evals.judge.openai import OpenAIJudge

        return OpenAIJudge(settings)
    return ReferenceJudge()
