"""Whether a part of a secret is in a text."""

LONGEST_PIECE = 6
"""Characters of a secret that may stay: fewer tell nothing and occur in other text by chance."""


def stays(secret: str, text: str) -> bool:
    """Return whether more than LONGEST_PIECE neighbouring characters of the secret are in the text."""
    size = min(len(secret), LONGEST_PIECE + 1)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))
