"""The GPUs on which an engine was measured, and their names."""

import re
from dataclasses import dataclass

from tasks.trainer.memory.fit import bytes_of

GB = 1e9
EXAMPLE = "tabloop plan capacity --requests 10000/day"
"""The next command of errors."""
NAME = re.compile(r"[A-Za-z]\w*")


class NotACard(ValueError):
    """A card cannot be read, or no engine was measured on it."""


@dataclass(frozen=True)
class Card:
    """A GPU."""

    name: str
    memory: int
    """Bytes."""


CARDS = (Card("H100", int(80e9)), Card("H200", int(141e9)))
"""Cards on which an engine was measured, and the memory that names them."""


def card_of(text: str, given_rate: float = 0.0) -> Card:
    """Return the card of a name such as H100 or of a memory such as 80GB.

    Args:
        given_rate: completions a second that the user measured on it; with it, a card of any memory will do.

    Raises:
        NotACard: names the cards that were measured, and the next command.
    """
    measured = " and ".join(f"{card.name} ({card.memory / GB:.0f}GB)" for card in CARDS)
    if known := next((card for card in CARDS if text.upper() == card.name), None):
        return known
    way = "`tabloop bench capacity` beside engines on yours has engine_completions_per_second for the RATE of "
    if NAME.fullmatch(text):
        raise NotACard(
            f"--gpu: no engine was measured on {text!r}, only on {measured}: {way}`{EXAMPLE} --gpu-rate RATE --gpu 48GB`"
        )
    try:
        memory = bytes_of(text)
    except ValueError:
        raise NotACard(f"--gpu: expected a memory such as 80GB, or {measured}, got {text!r}: `{EXAMPLE} --gpu 80GB`") from None
    if known := next((card for card in CARDS if memory == card.memory), None):
        return known
    if not given_rate:
        raise NotACard(
            f"--gpu: no engine was measured on {text}, only on {measured}: {way}`{EXAMPLE} --gpu-rate RATE --gpu {text}`"
        )
    return Card(text, memory)
