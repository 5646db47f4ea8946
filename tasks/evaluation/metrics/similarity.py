"""The similarity of a completion to the real text. Pure functions over text.

Edit similarity is 1 - d(a, b) / max(|a|, |b|) with d of Levenshtein 1966, as in CodeXGLUE's line completion (Lu et al. 2021).
"""


def exact(completion: str, truth: str) -> bool:
    """Return whether the texts are equal, apart from white space at their ends."""
    return completion.strip() == truth.strip()


def edit_similarity(completion: str, truth: str) -> float:
    """Return 1 for equal texts and 0 for texts with nothing in common; ignores white space at their ends."""
    a, b = completion.strip(), truth.strip()
    longest = max(len(a), len(b))
    return 1.0 if longest == 0 else 1.0 - distance(a, b) / longest


def distance(a: str, b: str) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions that turn a into b.

    A column of the table is two integers whose bits mark where it rises and falls (Myers 1999, "A fast bit-vector algorithm for
    approximate string matching based on dynamic programming"; Hyyrö 2003 for the distance of whole texts).
    """
    if not a:
        return len(b)
    places: dict[str, int] = {}
    for row, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << row
    every, last, found = (1 << len(a)) - 1, 1 << len(a) - 1, len(a)
    rises, falls = every, 0
    for character in b:
        equal = places.get(character, 0)
        vertical = equal | falls
        horizontal = ((equal & rises) + rises) ^ rises | equal
        up, down = falls | ~(horizontal | rises) & every, rises & horizontal
        found += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        rises, falls = (down | ~(vertical | up)) & every, up & vertical & every
    return found


def first_line(completion: str) -> str:
    """Return the completion up to its first newline: the answer at a rest-of-line position."""
    return completion.split("\n", 1)[0].rstrip()
