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
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions that turn a into b."""
    if len(a) < len(b):
        a, b = b, a
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def matching_prefix(completion: str, truth: str) -> int:
    """Return the number of characters from the start that are equal in both."""
    for index, (left, right) in enumerate(zip(completion, truth, strict=False)):
        if left != right:
            return index
    return min(len(completion), len(truth))


def first_line(completion: str) -> str:
    """Return the completion up to its first newline: the answer at a rest-of-line position."""
    return completion.split("\n", 1)[0].rstrip()
