"""Judges of completions: one module each, and `build`, which picks one by the settings."""

from evals.judge.base import HIGHEST, Failed, FailureKind, Item, Judge, Judgement, Scored
from evals.judge.cache import CachedJudge
from evals.judge.kept import KeptJudge
from evals.judge.reference import ReferenceJudge
from infra.settings import schema
from infra.store import ObjectStore

__all__ = [
    "HIGHEST",
    "CachedJudge",
    "Failed",
    "FailureKind",
    "Item",
    "Judge",
    "Judgement",
    "KeptJudge",
    "ReferenceJudge",
    "Scored",
    "build",
]


def build(settings: schema.Judge, store: ObjectStore | None = None) -> Judge:
    """Return the judge that `settings.kind` names; with a store, one that keeps the scores of a model there."""
    if settings.kind == "openai":
        from evals.judge.openai import OpenAIJudge

        judge = OpenAIJudge(settings)
        return CachedJudge(judge, judge.identity, store) if store else judge
    return KeptJudge() if settings.kind == "kept" else ReferenceJudge()
