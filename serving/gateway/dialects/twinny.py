"""twinny of VS Code. Its requests are OpenAI's, but its CodeLlama template puts a blank before the code behind the cursor."""

from dataclasses import replace

from serving.gateway.dialects.base import Dialect, Fields, ParsedCompletion, ServedModel
from serving.gateway.dialects.openai import OPENAI
from serving.gateway.dialects.openai import parse as read

STOPS = ["<EOT>", "<PRE>", "<SUF>", "<MID>"]
"""Its stop strings for that template, which it also takes for models whose name it does not know (common/constants/models.ts)."""
BEGIN, BETWEEN, END = "<PRE> ", " <SUF> ", " <MID>"


def parse(body: Fields, model: ServedModel) -> ParsedCompletion:
    """Read a body of /v1/completions without the blank of the template. Raises BadRequest."""
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt.startswith(BEGIN) and prompt.endswith(END):
        prompt = prompt.replace(BETWEEN, BETWEEN.rstrip())
    return read({**body, "prompt": prompt}, model)


def _recognizes(body: Fields, headers: Fields) -> bool:
    options = body.get("options")
    return STOPS in (body.get("stop"), options.get("stop") if isinstance(options, dict) else None)


(FORMAT,) = OPENAI.completions
TWINNY = Dialect(name="twinny", recognizes=_recognizes, completions=(replace(FORMAT, parse=parse),))
