"""The places of a comparison: those of the held-out sets that the settings name, as a cycle would build them now."""

from collections.abc import Sequence

from infra.settings.evaluation import Evaluate
from tasks.evaluation.heldout.build import build
from tasks.evaluation.heldout.sets import Places


class UnknownSet(ValueError):
    """No set of the settings has this name, or none can be built."""


def named_sets(evaluate: Evaluate, names: Sequence[str], languages: Sequence[str], count: int | None) -> tuple[Places, ...]:
    """Return sets by name; without names, all but the team's own, which is made from a cycle's requests.

    Args:
        languages: languages (extensions) of the places; none: all.
        count: places of each set that ask for text; none: as the settings say.

    Raises:
        UnknownSet: a name is no set's, or there is no place.
        ValueError: a set's files are missing, malformed or too few.
    """
    known = {one.name: one for one in evaluate.sets if one.kind != "team"}
    if unknown := [name for name in names if name not in known]:
        raise UnknownSet(
            f"set {unknown[0]!r}: expected one of {sorted(known)}, which evaluate.sets names (the team's own set is made from a "
            "cycle's requests); `tabloop sets` shows them"
        )
    wanted = [known[name] for name in names or known]
    sized = [one.model_copy(update={"places": count, "seed": evaluate.seed}) if count else one for one in wanted]
    given = evaluate.model_copy(update={"samples": count or evaluate.samples})
    built = [build(one.model_copy(update={"languages": tuple(languages) or one.languages}), given) for one in sized]
    found = tuple(one for one in built if one.places)
    if not found:
        raise UnknownSet(
            f"sets {[one.name for one in wanted]}: no place in the languages {list(languages)}; "
            "`tabloop sets` shows which they have"
        )
    return found
