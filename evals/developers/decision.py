"""What a developer decided about a completion, for local files only."""

from dataclasses import dataclass

from evals.developers.pause import Pause, SettledTruth, Way
from evals.developers.transport import Answer


@dataclass(frozen=True)
class Decision:
    """One pause, its outcome and what became of the place, as `--decisions` writes it; never sent to a server."""

    user: str
    visit: int
    """Number of the session."""
    file: str
    offset: int
    """Offset of the cursor in the finished file."""
    way: Way
    stop: int
    """Number of the pause in this line."""
    prefix: str
    """As sent."""
    suffix: str
    version: str
    outcome: str
    """accepted, rejected, unreported, nothing, cancelled or error."""
    reason: str
    truth: str
    elapsed_ms: float
    accepted: bool = False
    """The developer accepted; an editor that is silent or was superseded did not report it."""
    shown: str = ""
    right: int = 0
    """Right characters from the start."""
    request_id: str = ""
    """Id of the answer; empty without one."""
    completion_id: str = ""
    """The editor's id of the impression; empty if nothing was shown."""
    settled: SettledTruth | None = None


def undecided(pause: Pause, answer: Answer) -> Decision:
    """Return the decision on an answer before the developer has looked at it: an error."""
    position = pause.position
    return Decision(
        user=pause.developer.name,
        visit=pause.visit,
        file=position.file,
        offset=position.offset,
        way=pause.way,
        stop=pause.stop,
        prefix=pause.prefix,
        suffix=pause.suffix,
        version=answer.version,
        outcome="error",
        reason=answer.error,
        truth=position.truth,
        elapsed_ms=answer.elapsed_ms,
        request_id=answer.completion_id,
    )
