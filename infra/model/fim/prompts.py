"""Reads the prompts of editors: a FIM prompt is read whole, or refused with the name of its format and the client's setting."""

from collections.abc import Iterator
from dataclasses import dataclass

from infra.model.fim.formats import FORMATS, MIDDLE, PATHS, PREFIX, REFUSED, SEPARATORS, SUFFIX, Format, in_order

ADVICE = (
    f"choose Qwen's template in the editor ({PREFIX}...{SUFFIX}...{MIDDLE}; Continue uses it if the model's name contains "
    "'qwen' and 'coder'), or send the code before the cursor as prompt and the code behind it as suffix, without markers"
)
DIFF = "diff --git "
"""Start of Continue's first snippet where that is the developer's changes, which have no header."""
SHOWN = 40
"""Characters of a prompt in an error."""


@dataclass(frozen=True)
class Context:
    """The code around a cursor."""

    prefix: str
    suffix: str
    preamble: str = ""
    """Code of other files at the start of the editor's prompt, with repository and file markers, as sent."""


def path_of(context: Context) -> str:
    """Return the path of the file with the cursor, which stands last in the preamble; empty if the prompt does not name it."""
    found = PATHS.search(context.preamble[-4096:])
    return (found[1] or found[2] or "").rstrip(" ") if found else ""


def read_request(prompt: str, suffix: str | None) -> Context:
    """Return the context of a request for a completion.

    Args:
        suffix: the request's own field; None if it has none. With one, a prompt that is no whole FIM prompt is code as it is.

    Raises:
        ValueError: the prompt cannot be read, or it holds a suffix and the request another one.
    """
    if suffix is None:
        return parse_prompt(prompt)
    evident = _evident(prompt)
    if not suffix:
        _refuse_other_formats(prompt)
    if not evident:
        return Context(prompt, suffix) if suffix else _last_of_files(prompt)
    try:
        context = _read(prompt, evident)
    except ValueError:
        if prompt.startswith(tuple(each.first for each in evident)):
            raise
        return Context(prompt, suffix)  # code whose last characters are a marker
    if suffix:
        raise ValueError(
            f"{_got(prompt)} holds the suffix already ({evident[0].name}'s FIM format), and the field suffix another one; "
            "expected a marked prompt alone, or prefix and suffix without markers: leave suffix out of the client's request, or "
            "turn its FIM template off"
        )
    return context


def parse_prompt(prompt: str) -> Context:
    """Return the context in an editor's prompt of a format (formats.py), or of whole files; any other is a plain prefix.

    Text behind the middle marker belongs to the prefix. Code may hold markers as long as one reading of the prompt is left: where
    it ends with the middle marker, that one is the format's.

    Raises:
        ValueError: the prompt has markers in another order, can be read in several ways, or is of a format that is refused.
    """
    _refuse_other_formats(prompt)
    if "<" not in prompt and "[" not in prompt:
        return Context(prompt, "")  # each format has one of them
    if evident := _evident(prompt):
        return _read(prompt, evident)
    for each in FORMATS:
        if in_order(prompt, *each.markers):
            raise ValueError(
                f"{_got(prompt)} has the FIM markers of {each.name} in the middle of other text: they may be code or the "
                f"format's; "
                f'for code, send the field suffix too, "" at the end of a file; else {ADVICE}'
            )
    return _last_of_files(prompt)


def request_context(prompt: str, prefix: str, suffix: str) -> tuple[str, str]:
    """Return the prefix and suffix of the completion request that an event describes.

    The prompt is the request's; prefix and suffix may hold more of the file, or other files' code under the editor's own markers.
    They are returned if the prompt has no valid frame.
    """
    try:
        context = parse_prompt(prompt)
    except ValueError:
        return prefix, suffix
    framed = context != Context(prompt, "")
    return (context.prefix, context.suffix) if framed else (prefix, suffix)


def _last_of_files(prompt: str) -> Context:
    """Return the code of the last file of a prompt of whole files, which ends at the cursor: Qwen's form for repositories, and
    twinny's at a file's end. Any other prompt is code as it is."""
    separator = next((each for first, each in SEPARATORS.items() if prompt.startswith(first)), "")
    named = f"\n{prompt}".rfind(f"\n{separator}") if separator else -1
    code = prompt.find("\n", named) + 1 if named >= 0 else 0
    return Context(prompt[code:], "", prompt[:code])


def _refuse_other_formats(prompt: str) -> None:
    """Raise ValueError if the prompt is of a format whose answer is no text at the cursor."""
    if prompt.startswith("<|user|>\n###"):
        return  # CodeGeeX wraps its FIM format in a chat
    for each in REFUSED:
        if each.matches(prompt):
            raise ValueError(
                f"{_got(prompt)} is {each.name}; expected code, or a FIM prompt of the code around the cursor: {each.setting}"
            )


def _evident(prompt: str) -> list[Format]:
    """Return the formats of whose frame the prompt has the beginning or the end; those whose marker begins it alone, if any."""
    if begun := [each for each in FORMATS if prompt.startswith(each.first)]:
        return begun
    return [
        each
        for each in FORMATS
        if (prompt.endswith(each.endings) and (each.middle or each.first in prompt))
        or prompt.endswith((each.first, each.between))
        or prompt.startswith((each.between, each.middle or each.between))
        or (each.files and prompt.startswith(each.files) and each.first in prompt)
    ]


def _read(prompt: str, evident: list[Format]) -> Context:
    """Return the only context that the formats read in the prompt. Raises ValueError for none or several."""
    readings: dict[Context, Format] = {}
    several = None
    for each in evident:
        try:
            if context := _split(prompt, each):
                readings.setdefault(context, each)
        except LookupError:
            several = each
    first = next(iter(readings.values()), evident[0])
    if several or len(readings) > 1:
        marked = several or first
        raise ValueError(
            f"{_got(prompt)} has the FIM markers of {marked.name} more than once: which are code and which the format's "
            "cannot be known; send the code as the fields prompt and suffix, without markers, or choose in the editor "
            "the template of a model whose markers the code does not hold"
        )
    if not readings:
        raise ValueError(
            f"{_got(prompt)} has FIM markers of {first.name}, but not in the order {'...'.join(first.markers)}; {ADVICE}"
        )
    return next(iter(readings))


def _split(prompt: str, each: Format) -> Context | None:
    """Return the context if the prompt has the format's frame, None if it has not. Raises LookupError for several frames."""
    start = 0 if prompt.startswith(each.first) else prompt.find(each.first)
    begin, end, tail = start + len(each.first), len(prompt), ""
    if start < 0:
        return None
    if each.gap and prompt.startswith(each.gap, begin):
        begin += len(each.gap)
    ending = next((ending for ending in each.endings if prompt.endswith(ending)), "")
    if ending:
        end -= len(ending)
        middles = [end]
    else:
        middles = list(_all(prompt, each.middle, begin)) if each.middle else [end]
    betweens = list(_all(prompt, each.between, begin, middles[-1])) if middles else []
    if not betweens:
        return None
    middles = [middle for middle in middles if middle >= betweens[0] + len(each.between)]
    if not middles:
        return None
    if len(betweens) > 1 or len(middles) > 1 or (start and prompt.count(each.first, 0, betweens[0]) > 1):
        raise LookupError
    if not ending and each.middle:
        end, tail = middles[0], prompt[middles[0] + len(each.middle) :]
    before, after = prompt[begin : betweens[0]], prompt[betweens[0] + len(each.between) : end]
    prefix, suffix = (before, after) if each.order == "psm" else (after, before)
    headers = prompt[:start]
    own = prefix.rfind(f"\n\n{each.header}") if each.header else -1
    if each.header and (prefix.startswith(each.header) or (own >= 0 and prefix.startswith(DIFF))):
        code = prefix.find("\n", max(0, own + 2)) + 1 or len(prefix)
        headers, prefix = prefix[:code], prefix[code:]
    if not tail.strip("\r\n"):
        tail = ""  # the line end of a template in YAML (`template: |`), not the document's
    return Context(prefix + tail, suffix, headers)


def _all(text: str, marker: str, start: int, end: int | None = None) -> Iterator[int]:
    """Yield where a marker stands in text[start:end]."""
    end = len(text) if end is None else end
    while (start := text.find(marker, start, end)) >= 0:
        yield start
        start += len(marker)


def _got(prompt: str) -> str:
    return f"prompt: {prompt[:SHOWN]!r}"
