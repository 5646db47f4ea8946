"""All metrics of a completion at a place.

A metric is a function of the place and of the text as served there: all lines, up to the end token, the arm's maximum of tokens
and the client's stop strings. `measure` computes all of these; metrics that an engine or a sandbox computes are added with
`dataclasses.replace`.
"""

from dataclasses import dataclass, fields

from infra.model.kept_text import common_start, kept_characters
from infra.model.language import language
from tasks.evaluation.metrics import habits, identifiers, similarity, syntax
from tasks.evaluation.positions import Position


@dataclass(frozen=True)
class Measured:
    """The metrics of one completion; None where one does not apply."""

    exact: float
    """1 if the texts are equal, apart from white space at their ends."""
    first_line: float
    """1 if the first line equals the true text's first line."""
    edit_similarity: float
    """0 to 1."""
    matching_characters: float
    """Right characters from the start."""
    kept_characters: float
    """Characters that occur in the true text, as the A/B test counts them (infra/model/kept_text.py)."""
    length: float
    """Characters."""
    empty: float
    """1 if there is nothing to show."""
    repetition: float
    """Share of repeated runs of tokens, 0 to 1."""
    comments: float | None
    """Share of the characters in comments, 0 to 1; None where the completion is empty or the language unknown."""
    commented: float | None = None
    """1 if the completion writes in a comment; None where the language is unknown (to Pygments)."""
    breaks_syntax: float | None = None
    """1 if the file has more syntax errors than with the true text; None where the language is unknown (to syntax.py)."""
    identifiers: float | None = None
    """Agreement of the names with those of the true text, 0 to 1; None where the true text has none."""
    passed: float | None = None
    """1 if the benchmark's tests pass (tasks/evaluation/sandbox); None where the place has none, or they were not run."""
    silent: float | None = None
    """1 if nothing is written where nothing should be; None at places that ask for text, where the other metrics apply."""


NAMES = tuple(field.name for field in fields(Measured))


def measure(position: Position, completion: str) -> Measured:
    """Return the metrics of the text served at a place."""
    truth, empty = position.truth, not completion.strip()
    written_in = position.language or language(position.file)
    comments = habits.comment_share(completion, position.prefix, written_in)
    broken = syntax.breaks(completion, truth, position.prefix, position.suffix, written_in)
    return Measured(
        exact=float(similarity.exact(completion, truth)),
        first_line=float(similarity.exact(similarity.first_line(completion), similarity.first_line(truth))),
        edit_similarity=similarity.edit_similarity(completion, truth),
        matching_characters=float(common_start(completion, truth)),
        kept_characters=0.0 if empty else float(kept_characters(completion, truth)),
        length=float(len(completion)),
        empty=float(empty),
        repetition=habits.repetition(completion),
        comments=comments,
        commented=None if habits.lexer_of(written_in) is None else float(bool(comments)),
        breaks_syntax=None if broken is None else float(broken),
        identifiers=identifiers.agreement(completion, truth, written_in),
        silent=None if position.asks else float(empty),
    )
