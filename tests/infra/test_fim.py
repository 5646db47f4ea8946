"""FIM prompts: parsing undoes framing, code cannot break the frame, cuts keep the code next to the cursor."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from infra.fim import (
    END,
    FOREIGN,
    FOREIGN_SPM,
    MIDDLE,
    PREFIX,
    SPECIAL_TOKENS,
    SUFFIX,
    Context,
    Order,
    Renderer,
    parse_prompt,
    request_context,
)

MARKERS = {*SPECIAL_TOKENS, *(marker.strip() for frame in FOREIGN + FOREIGN_SPM for marker in frame if marker)}
# Hypothesis sometimes draws constants of the program, which include markers.
plain = st.text(max_size=40).filter(lambda text: not any(marker in text for marker in MARKERS))
code = st.lists(plain | st.sampled_from(SPECIAL_TOKENS), max_size=6).map("".join)


def tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges: a token a byte, and Qwen's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


TOKENIZER = tokenizer()
BEGIN, AFTER, HERE = (TOKENIZER.token_to_id(token) for token in (PREFIX, SUFFIX, MIDDLE))
SPECIAL_IDS = {TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS}


def framed(prefix: str, suffix: str, preamble: str = "") -> str:
    """A prompt as Continue frames it."""
    return f"{preamble}{PREFIX}{prefix}{SUFFIX}{suffix}{MIDDLE}"


def pieces(ids: list[int], order: Order) -> tuple[list[int], list[int]]:
    """Prefix and suffix tokens of a rendered prompt."""
    if order == "psm":
        assert ids[0] == BEGIN and ids[-1] == HERE
        cut = ids.index(AFTER)
        return ids[1:cut], ids[cut + 1 : -1]
    assert ids[0] == AFTER and ids[-1] == HERE
    cut = ids.index(BEGIN)
    return ids[cut + 1 : -1], ids[1:cut]


def renderer(order: Order, prefix: int = 10_000, suffix: int = 10_000) -> Renderer:
    return Renderer(TOKENIZER, order, prefix, suffix)


@given(code, plain, st.text(alphabet="ab\n", max_size=10))
def test_taking_apart_undoes_framing(prefix: str, suffix: str, preamble: str) -> None:
    assert parse_prompt(framed(prefix, suffix, preamble)) == Context(prefix, suffix, preamble)


@given(plain)
def test_text_without_markers_is_a_plain_prefix(text: str) -> None:
    assert parse_prompt(text) == Context(text, "")


def test_the_outermost_markers_are_the_frame() -> None:
    assert parse_prompt(framed(f"a{PREFIX}b{MIDDLE}", f"c{MIDDLE}d")) == Context(f"a{PREFIX}b{MIDDLE}", f"c{MIDDLE}d")


@pytest.mark.parametrize("prompt", [f"{PREFIX}a", f"{SUFFIX}a{MIDDLE}", f"a{SUFFIX}b", f"{PREFIX}a{MIDDLE}", f"a{MIDDLE}"])
def test_markers_in_another_order_are_refused_with_what_to_do(prompt: str) -> None:
    with pytest.raises(ValueError, match="Qwen's template"):
        parse_prompt(prompt)


OTHERS = (  # as Continue renders them for models it does not recognise as Qwen's
    "{preamble}<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
    "{preamble}<PRE> {prefix} <SUF>{suffix} <MID>",
    "{preamble}<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",
)


@pytest.mark.parametrize("template", OTHERS)
@given(plain, plain, st.text(alphabet="ab\n", max_size=10))
def test_another_models_frame_is_taken_apart(template: str, prefix: str, suffix: str, preamble: str) -> None:
    prompt = template.format(prefix=prefix, suffix=suffix, preamble=preamble)
    assert parse_prompt(prompt) == Context(prefix, suffix, preamble)
    assert request_context(prompt, "more" + prefix, suffix) == (prefix, suffix)


@pytest.mark.parametrize("template", ["[SUFFIX]{}[PREFIX]{}", "<[fim-suffix]>{}<[fim-prefix]>{}<[fim-middle]>"])
def test_a_frame_with_the_suffix_first_is_taken_apart_where_it_is_clear(template: str) -> None:
    assert parse_prompt(template.format("\nprint(1)\n", "def f(x):\n    ")) == Context("def f(x):\n    ", "\nprint(1)\n")
    with pytest.raises(ValueError, match="Qwen's template"):
        parse_prompt(template.format("a[PREFIX]<[fim-prefix]>", "b"))


@pytest.mark.parametrize(
    "prompt",
    [
        "<fim_suffix>a<fim_prefix>b<fim_middle>",
        "b <MID>",
        "<｜fim▁hole｜>a<｜fim▁end｜>",
        "[SUFFIX]a",
        "<fim_prefix>a<fim_middle>",
    ],
)
def test_another_models_frame_that_is_none_of_the_known_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"Qwen's template.*'qwen' and 'coder'"):
        parse_prompt(prompt)


def test_other_models_markers_in_the_code_stay_text() -> None:
    for code in ('tokens = ["<fim_prefix>", "<fim_middle>"]\n', "a [SUFFIX] b", "see <PRE> and <MID>\n"):
        assert parse_prompt(code) == Context(code, "")
        assert parse_prompt(framed(code, code)) == Context(code, code)


@given(prefix=plain, suffix=plain, order=st.sampled_from(["psm", "spm"]))
def test_render_keeps_the_text_and_takes_the_models_order(prefix: str, suffix: str, order: Order) -> None:
    before, after = pieces(renderer(order).render(prefix, suffix), order)
    assert TOKENIZER.decode(before) == prefix and TOKENIZER.decode(after) == suffix


@given(prefix=code, suffix=code, order=st.sampled_from(["psm", "spm"]))
def test_marker_text_in_code_cannot_break_the_frame(prefix: str, suffix: str, order: Order) -> None:
    ids = renderer(order).render(prefix, suffix)
    assert [i for i in ids if i in SPECIAL_IDS] == ([BEGIN, AFTER, HERE] if order == "psm" else [AFTER, BEGIN, HERE])


@given(code, plain, st.sampled_from(["psm", "spm"]))
def test_an_editors_prompt_is_rendered_as_the_same_code(prefix: str, suffix: str, order: Order) -> None:
    context = parse_prompt(framed(prefix, suffix))
    assert renderer(order).render(context.prefix, context.suffix) == renderer(order).render(prefix, suffix)


@given(plain, plain, st.integers(1, 12), st.integers(0, 12), st.sampled_from(["psm", "spm"]))
def test_cuts_keep_what_is_next_to_the_cursor(prefix: str, suffix: str, most: int, most_after: int, order: Order) -> None:
    before, after = pieces(renderer(order, most, most_after).render(prefix, suffix), order)
    whole_before, whole_after = pieces(renderer(order).render(prefix, suffix), order)
    full = min(most, len(whole_before))
    assert full - most // 4 <= len(before) <= full and len(after) == min(most_after, len(whole_after))
    assert whole_before[len(whole_before) - len(before) :] == before
    assert whole_after[: len(after)] == after


@given(st.lists(st.text(alphabet="ab ", max_size=9), min_size=9, max_size=12).map("\n".join), st.text("xy", min_size=1))
def test_a_cut_stays_at_its_line_while_there_is_room(prefix: str, typed: str) -> None:
    """Otherwise the engine's prefix cache would miss at every keystroke."""
    assume(len(prefix) > 40)
    before, _ = pieces(renderer("spm", 40).render(prefix, ""), "spm")
    assert prefix[-len(before) - 1] == "\n"
    typed = typed[: 40 - len(before)]
    again, _ = pieces(renderer("spm", 40).render(prefix + typed, ""), "spm")
    assert TOKENIZER.decode(again) == TOKENIZER.decode(before) + typed


def test_a_tokenizer_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="fim_prefix"):
        Renderer(Tokenizer(models.BPE()), "psm", 1, 1).render("", "")


def test_the_end_token_is_one_of_qwens() -> None:
    assert END in SPECIAL_TOKENS
