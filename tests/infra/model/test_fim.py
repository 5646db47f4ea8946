"""FIM prompts: parsing undoes framing, code cannot break the frame, cuts keep the code next to the cursor."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from infra.model.fim import (
    END,
    FORMATS,
    MIDDLE,
    PREFIX,
    REFUSED,
    SPECIAL_TOKENS,
    SUFFIX,
    Context,
    Format,
    Order,
    Renderer,
    parse_prompt,
    path_of,
    read_request,
    request_context,
)
from infra.model.fim.formats import MARKERS
from infra.model.fim.tokens import control_tokens, end_token_ids
from infra.model.line_ends import normal, normal_context

# Hypothesis sometimes draws constants of the program, which include markers.
plain = st.text(max_size=40).filter(lambda text: not set("<[#") & set(text) and not text.startswith(("You are", "```")))
code = st.lists(plain | st.sampled_from(SPECIAL_TOKENS), max_size=6).map("".join)
EVERY_MARKER = sorted({*MARKERS, *(marker for each in FORMATS for marker in each.markers), "\u200b", "<|", "fim_middle|>"})
documents = st.lists(st.text(max_size=12) | st.sampled_from(EVERY_MARKER), max_size=8).map("".join)
"""Code of any code points, with markers of every format in it."""


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


def read(prompt: str, suffix: str | None = None) -> Context | None:
    """Return the context of a prompt, None if it is refused with its value and the client's setting."""
    try:
        return read_request(prompt, suffix)
    except ValueError as error:
        assert str(error).startswith(f"prompt: {prompt[:40]!r}")
        return None


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
@given(documents, documents, st.sampled_from(["", "ab\n", "FILES"]))
def test_a_document_with_any_markers_is_read_byte_for_byte_or_refused(
    each: Format, prefix: str, suffix: str, preamble: str
) -> None:
    preamble = (f"{each.files[0]}a.py\nx = 1\n" if each.files else "") if preamble == "FILES" else preamble
    context = read(each.prompt(prefix, suffix, preamble))
    if each.header and prefix.startswith(each.header):
        assert context is None or context.preamble + context.prefix == prefix
    else:
        assert context in (None, Context(prefix, suffix, preamble))
        assert context or any(marker.strip() in preamble + prefix + suffix for marker in EVERY_MARKER) or preamble


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
@given(plain, plain, st.text("ab\n", max_size=10))
def test_code_without_markers_is_read_in_every_format(each: Format, prefix: str, suffix: str, preamble: str) -> None:
    prompt = each.prompt(prefix, suffix, preamble)
    assert parse_prompt(prompt) == Context(prefix, suffix, preamble)
    assert read_request(prompt, "") == Context(prefix, suffix, preamble), "an empty suffix beside a marked prompt"
    with pytest.raises(ValueError, match="suffix"):
        read_request(prompt, "more")
    assert request_context(prompt, "more" + prefix, suffix) == (prefix, suffix)


@pytest.mark.parametrize("each", [each for each in FORMATS if each.middle], ids=lambda each: each.name)
@given(plain, plain, st.text("ab \n", min_size=1, max_size=10).filter(lambda tail: tail.strip("\n")))
def test_text_behind_the_middle_marker_belongs_to_the_prefix(each: Format, prefix: str, suffix: str, tail: str) -> None:
    whole = each.prompt(prefix, suffix).removesuffix(each.closing)
    assert parse_prompt(whole + tail) == Context(prefix + tail, suffix)


@given(documents, st.sampled_from(["", "x"]))
@example("[SUFFIX][PREFIX]", "")
def test_code_beside_a_suffix_is_code(document: str, suffix: str) -> None:
    framed = [] if suffix else [read(document)]
    assert read(document, suffix) in (Context(document, suffix), None, *framed), "a whole prompt beside an empty suffix is framed"
    assert read("x" + document + "x", "x") == Context("x" + document + "x", "x"), "no frame begins or ends it"


@given(plain)
def test_text_without_markers_is_the_prefix(text: str) -> None:
    assert parse_prompt(text) == Context(text, "")


def test_the_outermost_markers_are_the_frame() -> None:
    assert parse_prompt(frame_prompt(f"a{PREFIX}b{MIDDLE}", f"c{MIDDLE}d")) == Context(f"a{PREFIX}b{MIDDLE}", f"c{MIDDLE}d")


@pytest.mark.parametrize("prompt", [f"{PREFIX}a", f"{SUFFIX}a{MIDDLE}", f"{PREFIX}a{MIDDLE}", f"a{MIDDLE}", f"{MIDDLE}x{PREFIX}"])
def test_the_error_for_markers_in_another_order_names_the_template(prompt: str) -> None:
    with pytest.raises(ValueError, match="Qwen's template"):
        parse_prompt(prompt)


@pytest.mark.parametrize(
    "prompt",
    ["b <MID>", "<｜fim▁hole｜>a<｜fim▁end｜>", "[SUFFIX]a", "<fim_prefix>a<fim_middle>", "<|code_prefix|>a<|code_middle|>"],
)
def test_an_unknown_frame_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"Qwen's template.*'qwen' and 'coder'"):
        parse_prompt(prompt)


def test_markers_that_may_be_code_or_the_frame_are_refused() -> None:
    for prompt in (
        frame_prompt(f'x = "{SUFFIX}"', "y"),
        f"{PREFIX}a{SUFFIX}b{MIDDLE}c{MIDDLE}d",
        f'ALL = ("{PREFIX}", "{SUFFIX}", "{MIDDLE}")\n',
    ):
        with pytest.raises(ValueError, match="code"):
            parse_prompt(prompt)
    listed = f'ALL = ("{PREFIX}", "{SUFFIX}", "{MIDDLE}")\n'
    assert read_request(listed, "") == Context(listed, "") and read_request(listed, "\n") == Context(listed, "\n")


def test_markers_of_other_models_in_code_stay_text() -> None:
    for code in ('tokens = ["<fim_prefix>", "<fim_middle>"]\n', "a [SUFFIX] b", "see <PRE> and <MID>\n", f"a{SUFFIX}b"):
        assert parse_prompt(code) == Context(code, "")
        if SUFFIX not in code:
            assert parse_prompt(frame_prompt(code, code)) == Context(code, code)


PROMPTS = (  # as the clients' templates make them
    ("<|repo_name|>r\n<|file_sep|>o.py\nx\n<|file_sep|>src/a.py\n<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", "src/a.py"),
    ("<file_sep>x = 1\n<file_sep><fim_prefix>P<fim_suffix>S<fim_middle>", ""),
    ("<reponame>r\n<file_sep>o.py \nx\n<file_sep>src/a.py \n<fim_prefix>P<fim_suffix>S<fim_middle>", "src/a.py"),
    ("<|file_separator|>o.py \nx\n<|file_separator|>src/a.py \n<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", "src/a.py"),
    ("<filename>src/a.py\n<fim_suffix>S<fim_prefix>P<fim_middle>", "src/a.py"),
    ("[SUFFIX]S[PREFIX]+++++ o.py\nx\n\n+++++ src/a.py\nP", "src/a.py"),
    ("# o.py \nx\n# src/a.py \n[SUFFIX]S[PREFIX]P[MIDDLE]", ""),
    ("[SUFFIX]S[PREFIX]P", ""),
    ("#o.py\nx\n#src/a.py\n<｜fim▁begin｜>P<｜fim▁hole｜>S<｜fim▁end｜>", ""),
    (
        "<|user|>\n###REFERENCE:\n###PATH:o.py\nx\n\n###PATH:src/a.py\n###LANGUAGE:python\n###MODE:BLOCK\n"
        "<|code_suffix|>S<|code_prefix|>P<|code_middle|><|assistant|>\n",
        "src/a.py",
    ),
    ("<PRE>P <SUF>S <MID>", ""),
)


@pytest.mark.parametrize(("prompt", "path"), PROMPTS)
def test_the_preamble_of_a_family_names_the_file(prompt: str, path: str) -> None:
    context = parse_prompt(prompt)
    assert (context.prefix, context.suffix, path_of(context)) == ("P", "S", path)


@pytest.mark.parametrize(
    ("prompt", "prefix", "path"),
    [
        ("<|repo_name|>r\n<|file_sep|>o.py\nx\n<|file_sep|>src/a.py\nP\nQ", "P\nQ", "src/a.py"),
        ("<|file_sep|>a.py\r\nP", "P", "a.py"),
        ("<|file_separator|>o.py\nx\n<|file_separator|>a.py\n", "", "a.py"),
        ("<repo_name>r\n<file_sep>o.py\nx\n<file_sep>a.py\nX = '<file_sep>'", "X = '<file_sep>'", "a.py"),
        *(
            (code, code, "")
            for code in ("<|file_sep|>", "<|repo_name|>r\nP", "X = 1\n<|file_sep|>a.py\nP", "<filename>a</filename>\n")
        ),
    ],
)
@pytest.mark.parametrize("suffix", [None, ""])
def test_a_prompt_of_whole_files_is_the_code_of_the_last(prompt: str, prefix: str, path: str, suffix: str | None) -> None:
    """As twinny sends it where nothing stands behind the cursor."""
    context = read_request(prompt, suffix)
    assert (context.prefix, context.suffix, path_of(context)) == (prefix, "", path)
    assert context.preamble + context.prefix == prompt and read_request(prompt, "S") == Context(prompt, "S")


OTHER_PROMPTS = {
    "Zed's next-edit format zeta2": (
        "<[fim-suffix]>\nafter\n<[fim-prefix]><filename>edit_history\n--- a/a.py\n\n<filename>a.py\nx\n<<<<<<< CURRENT\n"
        "y = <|user_cursor|>\n=======\n<[fim-middle]>",
        "<[fim-suffix]>b\n<[fim-prefix]>a\n<<<<<<< CURRENT\ny\n=======\n<[fim-middle]>",
        "<|file_sep|>a.py\n<|fim_prefix|>\nx\n<|fim_middle|>current\ny<|user_cursor|>\n<|fim_suffix|>\nz\n<|fim_middle|>updated\n",
        "<|file_sep|>a.py\n<|fim_suffix|>\nz\n<|fim_prefix|>x\n<<<<<<< CURRENT\ny\n=======\n<|fim_middle|>",
        "<|fim_prefix|>x<|fim_suffix|>z<|marker_1|>y<|user_cursor|><|marker_2|><|fim_middle|>",
    ),
    "Zed's next-edit format zeta": (
        "### Instruction:\nYou are a code completion assistant\n\n### User Edits:\n\n### User Excerpt:\n\nx\n### Response:\n",
        "<|start_of_file|>\n<|editable_region_start|>\nx<|user_cursor_is_here|>\n<|editable_region_end|>\n",
    ),
    "Sweep's next-edit format": (
        "<|file_sep|>o.py\nx\n<|file_sep|>original/a.py\nx\n<|file_sep|>current/a.py\nxy\n<|file_sep|>updated/a.py\n",
    ),
    "Mercury's next-edit format": (
        "<|recently_viewed_code_snippets|>\n\n<|/recently_viewed_code_snippets|>\n\n<|current_file_content|>\nx\n",
    ),
    "a chat template": (
        "<|im_start|>system\nYou complete code.<|im_end|>\n<|im_start|>user\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<s>[INST] Complete: def f [/INST]",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|>",
        "<bos><start_of_turn>user\nx<end_of_turn>\n",
        "<|user|>\nComplete this<|assistant|>\n",
    ),
    "an instruction to a chat model": (
        "You are a HOLE FILLER. You are provided with a file\n<QUERY>\na{{FILL_HERE}}b\n</QUERY>\n<COMPLETION>",
        "```\na[BLANK]b\n```\n\nFill in the blank to complete the code block. Your response",
        "You are an expert Python programmer. Complete:\n",
        "### Instruction:\nComplete\n### Response:\n",
    ),
}


@pytest.mark.parametrize("name", [each.name for each in REFUSED])
def test_a_prompt_whose_answer_is_no_text_at_the_cursor_is_refused_by_name(name: str) -> None:
    (setting,) = [each.setting for each in REFUSED if each.name == name]
    for prompt in OTHER_PROMPTS[name]:
        for suffix in (None, ""):
            with pytest.raises(ValueError) as error:
                read_request(prompt, suffix)
            assert str(error.value).startswith(f"prompt: {prompt[:40]!r} is {name}; expected ") and setting in str(error.value)


@given(prefix=plain, suffix=plain, order=st.sampled_from(["psm", "spm"]))
def test_a_rendered_prompt_has_the_same_text_in_the_models_order(prefix: str, suffix: str, order: Order) -> None:
    prefix_ids, suffix_ids = split_rendered(renderer(order).render(prefix, suffix), order)
    assert (TOKENIZER.decode(prefix_ids), TOKENIZER.decode(suffix_ids)) == normal_context(prefix, suffix)


@given(documents, documents, documents)
def test_a_middle_with_any_markers_inserts_into_its_document(prefix: str, middle: str, suffix: str) -> None:
    """What a model is taught and what it answers is the code itself: no character is added."""
    rendered = renderer("psm")
    before, after = split_rendered(rendered.render(prefix, suffix), "psm")
    parts = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in (before, rendered.encode(middle), after)]
    begin, end = normal_context(prefix, suffix)
    assert "".join(parts) == begin + normal(middle) + end


@given(prefix=code, suffix=code, order=st.sampled_from(["psm", "spm"]))
def test_marker_text_in_code_cannot_break_the_frame(prefix: str, suffix: str, order: Order) -> None:
    ids = renderer(order).render(prefix, suffix)
    assert [i for i in ids if i in SPECIAL_IDS] == (
        [PREFIX_ID, SUFFIX_ID, MIDDLE_ID] if order == "psm" else [SUFFIX_ID, PREFIX_ID, MIDDLE_ID]
    )


@given(code, plain, st.sampled_from(["psm", "spm"]))
def test_an_editors_prompt_and_its_code_render_equally(prefix: str, suffix: str, order: Order) -> None:
    assume(SUFFIX not in prefix)
    context = parse_prompt(frame_prompt(prefix, suffix))
    assert renderer(order).render(context.prefix, context.suffix) == renderer(order).render(prefix, suffix)


@given(st.lists(st.tuples(documents, documents), max_size=3), st.integers(1, 12), st.sampled_from(["psm", "spm"]))
def test_prompts_rendered_together_are_those_of_each(contexts: list[tuple[str, str]], size: int, order: Order) -> None:
    many = contexts * 40
    each = [renderer(order, size, size).render(*context) for context in many]
    assert list(renderer(order, size, size).render_all(many)) == each


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


def test_added_tokens_that_are_markers_are_control_tokens_though_not_special(tmp_path: Path) -> None:
    described = json.loads(TOKENIZER.to_str())
    for number, name in enumerate(("<|im_end|>", "<tool_call>", "<end_of_turn>", "    "), 263):
        described["added_tokens"].append({**described["added_tokens"][0], "id": number, "content": name, "special": False})
    described["added_tokens"][1]["special"] = False  # as Qwen2.5-Coder declares its FIM tokens
    mixed = Tokenizer.from_str(json.dumps(described))
    assert control_tokens(mixed).keys() == {*SPECIAL_TOKENS, "<|im_end|>", "<end_of_turn>"}
    text = "a<|im_end|><tool_call>    <|fim_prefix|><end_of_turn>"
    rendered = Renderer(mixed, "psm", 100, 100)
    ids = rendered.encode(text)
    assert mixed.decode(ids, skip_special_tokens=False) == text and {264, 266} < set(ids)
    assert not {263, 265, PREFIX_ID} & set(ids)
    assert 65 not in end_token_ids(mixed, tmp_path) and 264 not in end_token_ids(mixed)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [65, 66]}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "c"}, "chat_template": [{"name": "default", "template": "{{x}}<tool_call>"}]})
    )
    assert {65, 66, id_of("c")} < {*end_token_ids(mixed, tmp_path)} and 264 not in end_token_ids(mixed, tmp_path)


def test_the_end_token_is_a_special_token() -> None:
    assert END in SPECIAL_TOKENS


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_the_line_end_of_a_yaml_template_is_not_the_documents(end: str) -> None:
    context = parse_prompt(f"<|fim_prefix|>a = <|fim_suffix|>\nb<|fim_middle|>{end}")
    assert (context.prefix, context.suffix) == ("a = ", "\nb")


def test_a_snippet_is_no_path() -> None:
    assert path_of(parse_prompt("<file_sep>def add(a, b):<file_sep><fim_prefix>x = <fim_suffix>\n<fim_middle>")) == ""
    crlf = "<|repo_name|>r\r\n<|file_sep|>a.py\r\n<|fim_prefix|>x = <|fim_suffix|>\r\n<|fim_middle|>"
    assert path_of(parse_prompt(crlf)) == "a.py"


def test_continues_codestral_prompt_may_begin_with_a_diff() -> None:
    changes = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n+y = 2"
    context = parse_prompt(f"[SUFFIX]\n[PREFIX]{changes}\n\n+++++ cur.py\nx = ")
    assert (context.prefix, path_of(context)) == ("x = ", "cur.py")
