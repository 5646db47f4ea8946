"""FIM prompts: parsing undoes framing, code cannot break the frame, cuts keep the code next to the cursor."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from infra.model.fim import (
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
from infra.model.line_ends import normal_context

MARKERS = {*SPECIAL_TOKENS, *(marker.strip() for frame in FOREIGN + FOREIGN_SPM for marker in frame if marker)}
# Hypothesis sometimes draws constants of the program, which include markers.
plain = st.text(max_size=40).filter(lambda text: not any(marker in text for marker in MARKERS))
code = st.lists(plain | st.sampled_from(SPECIAL_TOKENS), max_size=6).map("".join)


def tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer without merges: one token per byte, and Qwen's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


TOKENIZER = tokenizer()


def id_of(token: str) -> int:
    found = TOKENIZER.token_to_id(token)
    assert found is not None
    return found


PREFIX_ID, SUFFIX_ID, MIDDLE_ID = map(id_of, (PREFIX, SUFFIX, MIDDLE))
SPECIAL_IDS = {TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS}


def frame_prompt(prefix: str, suffix: str, preamble: str = "") -> str:
    """Return a prompt as Continue frames it."""
    return f"{preamble}{PREFIX}{prefix}{SUFFIX}{suffix}{MIDDLE}"


def split_rendered(ids: list[int], order: Order) -> tuple[list[int], list[int]]:
    """Return the prefix and suffix tokens of a rendered prompt."""
    if order == "psm":
        assert ids[0] == PREFIX_ID and ids[-1] == MIDDLE_ID
        cut = ids.index(SUFFIX_ID)
        return ids[1:cut], ids[cut + 1 : -1]
    assert ids[0] == SUFFIX_ID and ids[-1] == MIDDLE_ID
    cut = ids.index(PREFIX_ID)
    return ids[cut + 1 : -1], ids[1:cut]


def renderer(order: Order, prefix: int = 10_000, suffix: int = 10_000) -> Renderer:
    return Renderer(TOKENIZER, order, prefix, suffix)


@given(code, plain, st.text(alphabet="ab\n", max_size=10))
def test_parsing_a_framed_prompt_returns_its_parts(prefix: str, suffix: str, preamble: str) -> None:
    assert parse_prompt(frame_prompt(prefix, suffix, preamble)) == Context(prefix, suffix, preamble)


@given(plain)
def test_text_without_markers_is_the_prefix(text: str) -> None:
    assert parse_prompt(text) == Context(text, "")


def test_the_outermost_markers_are_the_frame() -> None:
    assert parse_prompt(frame_prompt(f"a{PREFIX}b{MIDDLE}", f"c{MIDDLE}d")) == Context(f"a{PREFIX}b{MIDDLE}", f"c{MIDDLE}d")


@pytest.mark.parametrize("prompt", [f"{PREFIX}a", f"{SUFFIX}a{MIDDLE}", f"a{SUFFIX}b", f"{PREFIX}a{MIDDLE}", f"a{MIDDLE}"])
def test_the_error_for_markers_in_another_order_names_the_template(prompt: str) -> None:
    with pytest.raises(ValueError, match="Qwen's template"):
        parse_prompt(prompt)


OTHER_TEMPLATES = (  # as Continue renders them for models that it does not recognise as Qwen's
    "{preamble}<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
    "{preamble}<PRE> {prefix} <SUF>{suffix} <MID>",
    "{preamble}<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",
)


@pytest.mark.parametrize("template", OTHER_TEMPLATES)
@given(plain, plain, st.text(alphabet="ab\n", max_size=10))
def test_the_frame_of_another_model_is_parsed(template: str, prefix: str, suffix: str, preamble: str) -> None:
    prompt = template.format(prefix=prefix, suffix=suffix, preamble=preamble)
    assert parse_prompt(prompt) == Context(prefix, suffix, preamble)
    assert request_context(prompt, "more" + prefix, suffix) == (prefix, suffix)


@pytest.mark.parametrize("template", ["[SUFFIX]{}[PREFIX]{}", "<[fim-suffix]>{}<[fim-prefix]>{}<[fim-middle]>"])
def test_a_frame_with_the_suffix_first_is_parsed_unless_it_is_ambiguous(template: str) -> None:
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
def test_an_unknown_frame_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"Qwen's template.*'qwen' and 'coder'"):
        parse_prompt(prompt)


def test_markers_of_other_models_in_code_stay_text() -> None:
    for code in ('tokens = ["<fim_prefix>", "<fim_middle>"]\n', "a [SUFFIX] b", "see <PRE> and <MID>\n"):
        assert parse_prompt(code) == Context(code, "")
        assert parse_prompt(frame_prompt(code, code)) == Context(code, code)


@given(prefix=plain, suffix=plain, order=st.sampled_from(["psm", "spm"]))
def test_a_rendered_prompt_has_the_same_text_in_the_models_order(prefix: str, suffix: str, order: Order) -> None:
    prefix_ids, suffix_ids = split_rendered(renderer(order).render(prefix, suffix), order)
    assert (TOKENIZER.decode(prefix_ids), TOKENIZER.decode(suffix_ids)) == normal_context(prefix, suffix)


@given(prefix=code, suffix=code, order=st.sampled_from(["psm", "spm"]))
def test_marker_text_in_code_cannot_break_the_frame(prefix: str, suffix: str, order: Order) -> None:
    ids = renderer(order).render(prefix, suffix)
    assert [i for i in ids if i in SPECIAL_IDS] == (
        [PREFIX_ID, SUFFIX_ID, MIDDLE_ID] if order == "psm" else [SUFFIX_ID, PREFIX_ID, MIDDLE_ID]
    )


@given(code, plain, st.sampled_from(["psm", "spm"]))
def test_an_editors_prompt_and_its_code_render_equally(prefix: str, suffix: str, order: Order) -> None:
    context = parse_prompt(frame_prompt(prefix, suffix))
    assert renderer(order).render(context.prefix, context.suffix) == renderer(order).render(prefix, suffix)


@given(plain, plain, st.integers(1, 12), st.integers(0, 12), st.sampled_from(["psm", "spm"]))
def test_cuts_keep_the_code_next_to_the_cursor(prefix: str, suffix: str, max_prefix: int, max_suffix: int, order: Order) -> None:
    prefix_ids, suffix_ids = split_rendered(renderer(order, max_prefix, max_suffix).render(prefix, suffix), order)
    uncut_prefix_ids, uncut_suffix_ids = split_rendered(renderer(order).render(prefix, suffix), order)
    expected_length = min(max_prefix, len(uncut_prefix_ids))
    assert expected_length - max_prefix // 4 <= len(prefix_ids) <= expected_length and len(suffix_ids) == min(
        max_suffix, len(uncut_suffix_ids)
    )
    assert uncut_prefix_ids[len(uncut_prefix_ids) - len(prefix_ids) :] == prefix_ids
    assert uncut_suffix_ids[: len(suffix_ids)] == suffix_ids


@given(st.lists(st.text(alphabet="ab ", max_size=9), min_size=9, max_size=12).map("\n".join), st.text("xy", min_size=1))
def test_a_cut_stays_at_its_line_while_the_typed_text_fits(prefix: str, typed: str) -> None:
    """Otherwise the engine's prefix cache would miss at every keystroke."""
    assume(len(prefix) > 40)
    prefix_ids, _ = split_rendered(renderer("spm", 40).render(prefix, ""), "spm")
    assert prefix[-len(prefix_ids) - 1] == "\n"
    typed = typed[: 40 - len(prefix_ids)]
    typed_prefix_ids, _ = split_rendered(renderer("spm", 40).render(prefix + typed, ""), "spm")
    assert TOKENIZER.decode(typed_prefix_ids) == TOKENIZER.decode(prefix_ids) + typed


def test_a_tokenizer_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="fim_prefix"):
        Renderer(Tokenizer(models.BPE()), "psm", 1, 1).render("", "")


def test_the_end_token_is_a_special_token() -> None:
    assert END in SPECIAL_TOKENS
