"""LLM judges and built-in judges of completions, a module each, and `build`, which chooses one by the settings."""

from infra.settings import schema
from infra.storage.store import ObjectStore
from tasks.evaluation.judge.base import HIGHEST, Failed, FailureKind, Item, Judge, Judgement, Scored
from tasks.evaluation.judge.builtin import KeptJudge, ReferenceJudge
from tasks.evaluation.judge.cache import CachedJudge

__all__ = ["HIGHEST", "CachedJudge", "Failed", "FailureKind", "Item", "Judge", "Judgement", "KeptJudge", "ReferenceJudge"]
__all__ += ["Scored", "build"]


def build(settings: schema.Judge, store: ObjectStore | None = None) -> Judge:
    """Return the judge that `settings.kind` names; with a store, an LLM judge caches its scores there."""
    if settings.kind == "openai":
        from tasks.evaluation.judge.openai import OpenAIJudge

        judge = OpenAIJudge(settings)
        return CachedJudge(judge, judge.identity, store) if store else judge
    return KeptJudge() if settings.kind == "kept" else ReferenceJudge()
