"""Held-out sets: the places that models are scored at, and the sets that a cycle's manifest names."""

from pydantic import Field

from infra.records.base import ObjectReference, Record


class Case(Record):
    """One run of a program: it must write one of the expected outputs."""

    stdin: str = ""
    """Text on the program's standard input."""
    outputs: tuple[str, ...] = ()
    """Outputs that pass, white space at the ends of lines and of the text ignored; empty: the program must only end well."""


class Program(Record):
    """How a completion is run: between `before` and `after` it makes a program."""

    language: str = "py"
    """Language of the program (infra/model/language.py)."""
    before: str
    """Source text before the completion."""
    after: str
    """Source text after the completion."""
    cases: tuple[Case, ...] = (Case(),)
    """The completion passes if every case does."""
    truncated: bool = False
    """Whether only the beginning of a completion is run with which the program is well formed
    (tasks/evaluation/sandbox/truncation.py)."""


class HeldOutPlace(Record):
    """A place in code with the text that stands there."""

    id: str
    """Name within the set."""
    file: str
    """Path of the file within its project, or the benchmark's task; intervals are clustered by it. In the team's own set, the
    keyed hash of the path, or the request where it names no file."""
    project: str = ""
    """Repository or project of the file; empty if unknown."""
    user: str = ""
    """Keyed hash of the user who wrote the text; empty if nobody of the team did."""
    language: str = ""
    """Extension of the file or name of the language (infra/model/language.py); empty if unknown."""
    offset: int = 0
    """Offset of the cursor in the file, in characters; 0 where the set does not know it."""
    prefix: str
    """Text before the cursor."""
    suffix: str
    """Text after the removed text."""
    truth: str
    """The removed text; never part of a prompt."""
    program: Program | None = None
    """How the completion is run; none where it is only compared."""


class HeldOutCompletion(Record):
    """What a checkpoint wrote at a place."""

    id: str
    """Of the place, within its set."""
    user: str = ""
    """Of the place."""
    project: str = ""
    """Of the place."""
    text: str
    """As it is served: without end tokens, up to the first stop string."""
    token_ids: tuple[int, ...]
    """Sampled token ids, with the end token where it was sampled."""
    truth_logprob: float | None = None
    """Mean log-probability of the true text's tokens, in nats; none where it was not asked for, or the text has no token."""


class HeldOutSet(Record):
    """A set of places in the object store, with what was left out of it."""

    name: str
    """Name in the settings."""
    places: ObjectReference
    """Parquet of HeldOutPlace; the key holds the checksum of the bytes."""
    left_out: dict[str, int] = Field(default={})
    """Number of files and places that are not in the set, by reason (infra/docs/how/held-out.md)."""
    trained: tuple[str, ...] = ()
    """Ids of the set's places that no model is scored at in this cycle, since training data hold their text."""
    unchecked: tuple[str, ...] = ()
    """Cycles of the candidate's ancestry whose samples retention removed, so that the places could not be compared with them."""
