"""The configuration of each editor: `tabloop invite` prints it, a developer's page shows it, and the pages of infra/docs/editors
hold it for a placeholder of the token (tests/infra/pages/test_editors.py compares them)."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

PLAIN = re.compile(r"[A-Za-z][\w./:-]*")
"""A text that YAML reads as itself without quotes."""
ROUTES = re.compile(r"(?:/v1(?:/.*)?|/infill|/me)?/*\Z")
"""The app's own routes at the end of an address."""
WORDS_OF_YAML = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True)
class Reached:
    """How an editor reaches the servers, and as whom."""

    completions: str
    """Address of the completions port, with the path under which a proxy serves it."""
    feedback: str
    """Address to which events go, likewise; the completions port takes events too."""
    token: str
    model: str
    """The model's name as editors give it (model.name)."""
    project: str = ""
    """Project of the requests; empty: the token's own."""


@dataclass(frozen=True)
class Configuration:
    """The finished configuration of one editor."""

    editor: str
    """Name as people write it."""
    file: str
    """Where it belongs."""
    kind: str
    """Language of the text, as Markdown names it."""
    text: str
    notes: tuple[str, ...] = ()
    """What the text does not say: how it joins an existing file, and where to look when nothing appears."""


def reached(address: str, token: str, model: str, project: str = "", feedback: str = "") -> Reached:
    """Return how to reach the servers at an address such as https://tabloop.example; a route such as /v1 at its end is cut.

    Raises:
        ValueError: the address is no URL of http or https with a host.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError(
            f"{address!r}: expected the address of the completions port without credentials, such as https://tabloop.example or "
            "http://127.0.0.1:8081"
        )
    base = f"{parts.scheme}://{parts.netloc}{ROUTES.sub('', parts.path)}"
    return Reached(base, feedback or base, token, model, project)


def configure(editor: str, where: Reached) -> Configuration:
    """Return an editor's configuration. Raises ValueError for an editor that is not in EDITORS."""
    if editor not in EDITORS:
        raise ValueError(f"{editor!r}: expected one of {', '.join(EDITORS)}")
    return EDITORS[editor](where)


def _continue(where: Reached) -> Configuration:
    headers = f"\n    requestOptions:\n      headers: {{X-Project-ID: {_yaml(where.project)}}}" if where.project else ""
    return Configuration(
        "Continue",
        "~/.continue/config.yaml (on Windows %USERPROFILE%\\.continue\\config.yaml)",
        "yaml",
        f"""\
name: tabloop
version: 0.0.1
schema: v1
models:
  - name: tabloop
    provider: openai
    model: {_yaml(where.model)}   # Continue chooses Qwen's FIM tokens by the words "qwen" and "coder"
    apiBase: {where.completions}/v1
    apiKey: {_yaml(where.token)}
    roles: [autocomplete]{headers}
    # Continue's cache knows no model versions, and it drops lines after the first that arrive after modelTimeout (150 ms by
    # default).
    autocompleteOptions: {{useCache: false, modelTimeout: 500}}
data:
  - name: tabloop
    destination: {where.feedback}/v1/continue/events
    schema: 0.2.0
    level: all
    events: [autocomplete]
    apiKey: {_yaml(where.token)}{headers}
""",
        (
            "This is the whole file. An existing file keeps its own name, version and schema: put the entry of models below its "
            "models:, and that of data below its data:, since YAML takes each key once.",
            "A wrong token shows as a message with HTTP 401.",
        ),
    )


def _zed(where: Reached) -> Configuration:
    settings = {
        "edit_predictions": {
            "provider": "open_ai_compatible_api",
            "open_ai_compatible_api": {
                "api_url": f"{where.completions}/v1/completions",
                "model": where.model,
                "prompt_format": "qwen",
                "max_output_tokens": 64,
            },
        }
    }
    return Configuration(
        "Zed",
        "~/.config/zed/settings.json (the command zed: open settings)",
        "json",
        json.dumps(settings, indent=2) + "\n",
        (
            f"The token {where.token} is no part of this file. Give it as the API key of the edit-prediction provider in Zed's "
            "settings, or start Zed with ZED_OPEN_AI_COMPATIBLE_EDIT_PREDICTION_API_KEY set to it.",
            "Join it with the settings that are there: JSON takes each key once.",
        ),
    )


def _tabby(where: Reached) -> Configuration:
    return Configuration(
        "Tabby",
        "~/.tabby-client/agent/config.toml",
        "toml",
        f"[server]\nendpoint = {json.dumps(where.completions)}\ntoken = {json.dumps(where.token)}\n",
        (
            "In the extension's settings leave endpoint and token empty: they go before this file.",
            'The status bar shows "unauthorized" for a wrong token, and no connection while no engine is ready.',
        ),
    )


def _llama_vim(where: Reached) -> Configuration:
    return Configuration(
        "llama.vim",
        "~/.vimrc (Neovim: ~/.config/nvim/init.vim), before the plugin is loaded",
        "vim",
        f"""\
let g:llama_config = {{
    \\ 'endpoint_fim': {_vim(where.completions + "/infill")},
    \\ 'api_key': {_vim(where.token)},
    \\ }}
""",
        (
            "The plugin asks for Vim 9.1 or Neovim, and warns on Vim 9.0, where it works.",
            "With a wrong token it shows nothing at all: the check below then ends with 401. Older releases call the first key "
            "endpoint.",
        ),
    )


def _llama_vscode(where: Reached) -> Configuration:
    settings = {"llama-vscode.endpoint": where.completions, "llama-vscode.api_key": where.token}
    return Configuration(
        "llama.vscode",
        "VS Code's settings.json (the command Preferences: Open User Settings (JSON))",
        "json",
        json.dumps(settings, indent=2) + "\n",
        ("The endpoint is the address without a path. Join it with the settings that are there.",),
    )


def _openai(where: Reached) -> Configuration:
    return Configuration(
        "any OpenAI client",
        "its settings",
        "text",
        f"base address  {where.completions}/v1\nkey           {where.token}\nmodel         {where.model}\n",
        ("It must send completions, not chats.",),
    )


EDITORS: Mapping[str, Callable[[Reached], Configuration]] = {
    "continue": _continue,
    "zed": _zed,
    "tabby": _tabby,
    "llama.vim": _llama_vim,
    "llama.vscode": _llama_vscode,
    "openai": _openai,
}
"""The editors, by the name that `tabloop invite --editor` takes."""


def check_command(where: Reached) -> str:
    """Return the command that shows whether server and token work: 401 for a wrong token, 503 while no engine is ready."""
    return f"curl --fail-with-body -H 'Authorization: Bearer {where.token}' {where.completions}/v1/health"


def _yaml(value: str) -> str:
    """Return a text as YAML reads it back."""
    return value if PLAIN.fullmatch(value) and value.lower() not in WORDS_OF_YAML and value[-1] != ":" else json.dumps(value)


def _vim(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
