"""Which of a completion's events decides what became of it: rules of labels, and of the past acceptance that serving counts."""

from infra.records import NotTaken, Outcome

STRENGTH: tuple[Outcome, ...] = ("shown", "rejected", "partially_accepted", "accepted", "retained", "thumbs_down")
"""Outcomes from weak to strong. A later accept overrides a rejection: Continue rejects by itself after 10 s, and a Tab after that
still counts. The text that remains after a while is stronger evidence, an explicit thumbs down the strongest."""
NOT_JUDGED: tuple[NotTaken, ...] = ("cancelled", "typed_through", "replaced", "empty")
"""Reasons for which a rejection is no evidence against the text: nobody saw or answered it, or it was typed as it stood."""
ACCEPTING: tuple[Outcome, ...] = ("partially_accepted", "accepted", "retained")
"""Outcomes of a completion that was taken, in whole or in part."""


def strength(outcome: Outcome, reason: NotTaken) -> int:
    """Return the place of an event's outcome in STRENGTH; a rejection for one of NOT_JUDGED counts as shown."""
    return STRENGTH.index("shown" if outcome == "rejected" and reason in NOT_JUDGED else outcome)


def is_accepted(strongest: int) -> bool | None:
    """Return whether a completion was accepted, by its strongest outcome; None where nobody judged it."""
    return STRENGTH[strongest] in ACCEPTING if strongest else None
