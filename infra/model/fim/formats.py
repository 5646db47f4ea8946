"""The one table of the prompts that editors send to a completions API: FIM formats, and formats that are refused by name.

Read from the templates of Continue, twinny, ProxyAI, Zed, minuet-ai.nvim and llama.cpp; the table of the documentation
(evals/docs/formats_page.py) is made from it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

PREFIX, SUFFIX, MIDDLE, PAD = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"
END, REPOSITORY, FILE = "<|endoftext|>", "<|repo_name|>", "<|file_sep|>"
SPECIAL_TOKENS = (END, PREFIX, MIDDLE, SUFFIX, PAD, REPOSITORY, FILE)

Order = Literal["psm", "spm"]


@dataclass(frozen=True)
class Format:
    """One FIM format: `[FILES]first gap A between B middle closing`; A and B are prefix and suffix, in PSM or SPM order."""

    name: str
    """Of the model's family."""
    order: Order
    first: str
    between: str
    middle: str
    """Marker at the cursor; empty: the prompt ends there."""
    gap: str = ""
    """Text that the template may have behind the first marker."""
    closing: str = ""
    """Text that the template may have at the end."""
    files: tuple[str, ...] = ()
    """Markers before other files' code, of which one may begin the prompt."""
    header: str = ""
    """Start of the line that names a file, where other files' code stands in front of the prefix, behind its marker."""
    stops: tuple[str, ...] = ()
    """Tokens that end a completion of this family, besides the markers."""
    clients: str = ""
    """Clients whose templates have it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers in the order of a prompt."""
        return tuple(marker for marker in (self.first, self.between, self.middle) if marker)

    @property
    def endings(self) -> tuple[str, ...]:
        """What a prompt with no text behind the middle marker may end with."""
        whole = self.middle + self.closing
        return tuple(dict.fromkeys(ending for ending in (whole, whole.rstrip("\n"), self.middle) if ending))

    def prompt(self, prefix: str, suffix: str, preamble: str = "") -> str:
        """Return the prompt as a client of this format sends it."""
        before, after = (prefix, suffix) if self.order == "psm" else (suffix, prefix)
        return f"{preamble}{self.first}{self.gap}{before}{self.between}{after}{self.middle}{self.closing}"


def _deepseek(name: str, begin: str, hole: str, end: str, clients: str) -> Format:
    return Format(name, "psm", begin, hole, end, stops=("<｜end▁of▁sentence｜>", "<|EOT|>"), clients=clients)


_STAR_FILES = ("<reponame>", "<repo_name>", "<file_sep>", "<filename>")
_GLM = ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")
_GLM_STOPS = (END, "<|user|>", "<|assistant|>", "<|observation|>")
_SEED_STOPS = ("<[end▁of▁sentence]>",)

FORMATS = (
    Format(
        "Qwen-Coder, CodeGemma, Granite 4, Mercury",
        "psm",
        *(PREFIX, SUFFIX, MIDDLE),
        files=(REPOSITORY, FILE, "<|file_separator|>"),
        stops=(END, PAD, "<|im_start|>", "<|im_end|>", "<|file_separator|>", "<|end_of_text|>", "<end_of_turn>", "<eos>"),
        clients="Continue, Zed, twinny, ProxyAI, minuet, llama.cpp",
    ),
    Format(
        "StarCoder, StableCode, CodeQwen, Granite Code",
        "psm",
        *("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        files=_STAR_FILES,
        stops=(END,),
        clients="Continue, Zed, twinny, ProxyAI",
    ),
    Format(
        "Mellum, StarCoder with the suffix first",
        "spm",
        *("<fim_suffix>", "<fim_prefix>", "<fim_middle>"),
        files=_STAR_FILES,
        stops=(END,),
        clients="JetBrains' templates",
    ),
    Format("SantaCoder", "psm", "<fim-prefix>", "<fim-suffix>", "<fim-middle>", stops=(END,), clients="templates of one's own"),
    Format(
        "CodeLlama",
        "psm",
        "<PRE>",
        " <SUF>",
        " <MID>",
        gap=" ",
        stops=("<EOT>", "</s>"),
        clients="Continue, Zed, twinny, ProxyAI",
    ),
    _deepseek("DeepSeek-Coder", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "Continue, Zed, twinny, ProxyAI"),
    _deepseek("DeepSeek-Coder in ASCII bars", "<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>", "templates of one's own"),
    _deepseek("DeepSeek-Coder in ASCII bars and spaces", "<|fim begin|>", "<|fim hole|>", "<|fim end|>", "Continue (older)"),
    _deepseek("DeepSeek-Coder with spaces", "<｜fim begin｜>", "<｜fim hole｜>", "<｜fim end｜>", "Continue's forks"),
    _deepseek("DeepSeek-Coder in ASCII", "<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>", "templates of one's own"),
    Format(
        "Codestral",
        "spm",
        *("[SUFFIX]", "[PREFIX]", ""),
        closing="[MIDDLE]",
        header="+++++ ",
        stops=("</s>",),
        clients="Continue, Zed, ProxyAI (with `[MIDDLE]`)",
    ),
    Format(
        "Seed-Coder",
        "spm",
        "<[fim-suffix]>",
        "<[fim-prefix]>",
        "<[fim-middle]>",
        stops=_SEED_STOPS,
        clients="templates of one's own",
    ),
    Format(
        "Seed-Coder with the prefix first",
        "psm",
        *("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
        stops=_SEED_STOPS,
        clients="Continue",
    ),
    Format("GLM", "psm", *_GLM, stops=_GLM_STOPS, clients="Zed"),
    Format(
        "CodeGeeX",
        "spm",
        *("<|code_suffix|>", "<|code_prefix|>", "<|code_middle|>"),
        closing="<|assistant|>\n",
        files=("<|user|>\n###",),
        stops=_GLM_STOPS,
        clients="Continue",
    ),
)

SEPARATORS = {
    **dict.fromkeys((REPOSITORY, FILE), FILE),
    **dict.fromkeys(("<repo_name>", "<file_sep>"), "<file_sep>"),
    "<|file_separator|>": "<|file_separator|>",
}
"""By the marker that begins a prompt of whole files, the one before the name of each file."""

MARKERS = frozenset(marker.strip() for each in FORMATS for marker in (*each.markers, *each.files, *each.stops)) | {
    *SPECIAL_TOKENS
}
"""Every marker and end token of the table."""

PATHS = re.compile(
    r"(?:<\|file_sep\|>|<\|file_separator\|>|<file_sep>|<filename>|\+{5} )([^\r\n<]*)\r?\n?\Z"
    r"|###PATH:([^\n]*)\n(?:###(?:LANGUAGE|MODE):[^\n]*\n)*\Z"
)
"""The path at the end of a preamble: that of the file with the cursor."""


@dataclass(frozen=True)
class Refused:
    """A format whose answer is no text at the cursor."""

    name: str
    recognized_by: str
    """In words."""
    matches: Callable[[str], object]
    """Takes a prompt; each takes time linear in its length."""
    setting: str
    """To change in the client."""


def in_order(text: str, *parts: str) -> bool:
    """Return whether the parts stand in the text one behind the other."""
    at = 0
    for part in parts:
        if (found := text.find(part, at)) < 0:
            return False
        at = found + len(part)
    return True


def _has_line(text: str, *lines: str) -> bool:
    return any(line in text and f"\n{line}\n" in f"\n{text}\n" for line in lines)


def _zeta2(prompt: str) -> bool:
    """Zed's crates/zeta_prompt, versions 0112 to 0615: over Qwen's or Seed-Coder's markers, with regions to rewrite."""
    if "<" not in prompt:
        return False
    current = prompt.find("<<<<<<< CURRENT")
    separator = prompt.rfind("=======", max(0, current))
    behind = prompt[separator + len("=======") :].lstrip()
    merge = 0 <= current < separator and (not behind or behind.startswith(("<|", "<[")))
    regions = "<|user_cursor|>" in prompt and "<|marker_" in prompt
    return merge or regions or any(part in prompt for part in ZETA2)


def _zeta(prompt: str) -> bool:
    return _has_line(prompt, "<|editable_region_start|>", "### User Edits:", "### User Excerpt:")


def _sweep(prompt: str) -> bool:
    header = prompt.rpartition(FILE)[2]
    return header.startswith("updated/") and in_order(prompt, f"{FILE}original/", f"{FILE}current/")


def _mercury(prompt: str) -> bool:
    return _has_line(prompt, "<|recently_viewed_code_snippets|>", "<|current_file_content|>", "<|code_to_edit|>")


def _beginning(prompt: str) -> str:
    """Return the text to match, without the blanks before it: a regular expression takes 60 ms for a megabyte of blanks."""
    return prompt.lstrip()[:BEGINNING]


def _chat(prompt: str) -> bool:
    return bool(CHAT.match(_beginning(prompt)))


def _instruction(prompt: str) -> bool:
    blank = prompt.startswith("```") and in_order(prompt, "[BLANK]", "\nFill in the blank to complete the code block.")
    return blank or bool(INSTRUCTION.match(_beginning(prompt))) or in_order(prompt, "<QUERY>\n", "{{FILL_HERE}}", "</QUERY>")


ZETA2 = (
    *("<|fim_middle|>current\n", "<|fim_middle|>updated\n", "<filename>edit_history\n", "<[fim-prefix]><filename>"),
    *(f"{FILE}edit history\n", f"{FILE}edit_history\n"),
)
BEGINNING = 4096
"""Characters of a prompt that CHAT and INSTRUCTION read, from its first that is no blank on."""
CHAT = re.compile(
    r"(?:(?:<s>|<bos>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>|\[gMASK\]<sop>)\s*)?"
    r"(?:<\|(?:im_start|im_system|start_header_id|header_start|start_of_role|user|system|assistant|start)\|>"
    r"|<start_of_turn>|\[INST\]|\[SYSTEM_PROMPT\]|<<SYS>>|<｜(?:User|Assistant)｜>)"
)
INSTRUCTION = re.compile(r"(?:### Instruction:|You are (?:a HOLE FILLER|an? [^\n]{0,60}(?:assistant|programmer|engineer)\b))")
ZED_SETTING = 'in Zed, set edit_predictions.open_ai_compatible_api.prompt_format to "qwen"'
CHAT_SETTING = "choose the client's FIM template (Continue: a model whose name contains 'qwen' and 'coder', role autocomplete)"
REFUSED = (
    Refused(
        "Zed's next-edit format zeta2",
        "`<<<<<<< CURRENT` and `=======`, a section `edit_history`, or `<|fim_middle|>current` and `updated`",
        _zeta2,
        ZED_SETTING,
    ),
    Refused("Zed's next-edit format zeta", "a line `<|editable_region_start|>` or `### User Edits:`", _zeta, ZED_SETTING),
    Refused("Sweep's next-edit format", "files `original/`, `current/` and, last, `updated/`", _sweep, ZED_SETTING),
    Refused(
        "Mercury's next-edit format",
        "a line `<|current_file_content|>`, `<|code_to_edit|>` or `<|recently_viewed_code_snippets|>`",
        _mercury,
        "turn next edits off (Continue: role autocomplete; Zed: provider open_ai_compatible_api)",
    ),
    Refused("a chat template", "`<|im_start|>`, `<|start_header_id|>`, `[INST]` or the like at its start", _chat, CHAT_SETTING),
    Refused(
        "an instruction to a chat model",
        "`### Instruction:` or `You are a ... assistant` at its start, `{{FILL_HERE}}` in `<QUERY>`, or `[BLANK]`",
        _instruction,
        CHAT_SETTING,
    ),
)
