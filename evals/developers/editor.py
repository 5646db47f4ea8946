"""Continue's text handling: the context that it sends and the part of a completion that it shows.

Follows core/autocomplete of continuedev/continue (filtering/streamTransforms, postprocessing, templating), applied to whole text
where Continue works on the stream. Omits the cut at 300 to 375 ms, which would make the shown text depend on the machine's load.
"""

from tasks.evaluation.metrics import distance

PREFIX_CHARACTERS = 1_075
"""maxPromptTokens 1024 x prefixPercentage 0.3, at 3.5 characters a token."""
SUFFIX_CHARACTERS = 715
"""maxPromptTokens 1024 x maxSuffixPercentage 0.2."""
SUFFIX_WINDOW = 20
REPEATS = 3
"""The third of equal consecutive lines ends a completion; the second is dropped."""


def prompt_context(prefix: str, suffix: str) -> tuple[str, str]:
    """Return the prefix and suffix to send: whole lines, the farthest dropped first; an empty suffix becomes a newline."""
    if len(prefix) > PREFIX_CHARACTERS:
        cut = prefix.find("\n", len(prefix) - PREFIX_CHARACTERS)
        prefix = prefix[cut + 1 :] if cut >= 0 else prefix[-PREFIX_CHARACTERS:]
    if len(suffix) > SUFFIX_CHARACTERS:
        cut = suffix.rfind("\n", 0, SUFFIX_CHARACTERS)
        suffix = suffix[:cut] if cut > 0 else suffix[:SUFFIX_CHARACTERS]
    return prefix, suffix or "\n"


def shown_text(generated: str, prefix: str, suffix: str) -> str:
    """Return the part of a completion that the editor shows; empty if it shows nothing."""
    comment = prefix.rsplit("\n", 1)[-1].lstrip().startswith("#")  # with one line only (multilineCompletions "auto")
    text = generated.split("\n", 1)[0] if comment else generated
    below = next((line for line in suffix.split("\n")[1:] if line.strip()), "")
    text = "\n".join(_filter_lines(_until_suffix(text, suffix), below))
    above = next((line for line in reversed(prefix.split("\n")) if line.strip()), "")
    first = next((line for line in text.split("\n") if line.strip()), "")
    if not first or _repeated(above, first):
        return ""
    return text.removeprefix(" ") if prefix.endswith(" ") else text


def lost_space(generated: str, text: str) -> bool:
    """Return whether the editor removed leading spaces."""
    return generated.startswith(" ") and not generated.startswith(text)


def _until_suffix(text: str, suffix: str) -> str:
    if len(suffix) < SUFFIX_WINDOW:
        return text
    target = suffix.lstrip()[: SUFFIX_WINDOW * 3 // 2]
    for end in range(SUFFIX_WINDOW, len(text) + 1):
        start = max(0, end - SUFFIX_WINDOW - 1)  # the newest character joins the window before the oldest leaves
        if text[start:end] in target:
            return text[:start]
    return text


def _filter_lines(text: str, below: str) -> list[str]:
    lines: list[str] = []
    previous, equal, closes = "", 0, any(character in ")]};" for character in below)
    for line in text.split("\n"):
        if below.strip() and line == below:
            break
        equal = equal + 1 if line == previous and equal else 1
        previous = line
        if equal == REPEATS:
            break
        if equal > 1 or line.strip() == "#":
            continue
        if not line.strip() and lines:  # a blank line
            break
        if _repeated(line, below.strip()) and not (closes and line.strip() == below.strip()):
            break
        lines.append(line)
    return lines


def _repeated(a: str, b: str) -> bool:
    if len(a) <= 4 or len(b) <= 4:
        return False
    a, b = a.strip(), b.strip()
    return bool(b) and abs(len(a) - len(b)) < 0.1 * len(b) and distance(a, b) < 0.1 * len(b)
