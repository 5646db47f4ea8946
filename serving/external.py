"""An arm that is a server of somebody else's: a team's own vLLM, or any service that speaks OpenAI's completions.

What it can do is tried when it is first looked at, and again after it was away:

    tokens   it takes and gives our token ids, and the log-probabilities of the distribution that it samples from (vLLM): what it
             serves is recorded and trained on as an engine's of ours
    text     anything else: prompt and completion are text, recorded with behaviour_logprobs "unknown" and never trained on

Its weights are fixed, or exchanged by vLLM's development endpoints with our own engines' worker extension (engine/worker.py).
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from infra import fim
from infra.settings.schema import External
from serving.engines import SWAP_SECONDS, EngineDown, Refused, SwapRefused, WrongVersion
from serving.generation import Policy
from serving.protocol import Delta, Finish, Health, Request, Swapped

log = logging.getLogger(__name__)
TRIED_WITH = ("def add(first, second):\n    return ", "\n\n\nprint(add(1, 2))\n")
"""Code before and after the cursor of the prompt that it is tried with."""
AS_SAMPLED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Said with every request: else vLLM takes what the checkpoint's generation_config.json says."""
MOST_STOPS = 4
"""Stop strings that OpenAI's API takes."""
LEAST_CODE = 16
"""Tokens around a cursor that a context must have room for."""
LABEL, HALF = "tabloop-", "tabloop-half-loaded"
"""Weights are labelled in the server itself, where every replica and every restart of the app finds what it holds."""
DATA, DONE = b"data:", b"[DONE]"
REFUSALS = (400, 413, 422)
"""What HTTP says of a request that a server does not take, whatever state it is in."""
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}


class ExternalEngine:
    """One such server, over a shared HTTP session; fits serving.engines.Engine."""

    def __init__(self, http: aiohttp.ClientSession, setting: External, policy: Policy) -> None:
        self._http = http
        self._setting = setting
        self._policy = policy
        self._headers = {"Authorization": f"Bearer {setting.token.get_secret_value()}"} if setting.token else {}
        self._version: str | None = None
        self._lacks: str | None = None
        """None: not tried yet, or away since."""
        self.room: int | None = None
        self.url = setting.url
        self.fixed = setting.swap == "none"

    @property
    def lacks(self) -> str:
        return "not tried yet" if self._lacks is None else self._lacks

    async def generate(self, request: Request) -> AsyncGenerator[Delta]:
        """Sample a completion; closing this closes the connection, which ends vLLM's work and that of most services.

        Raises:
            WrongVersion: it holds another version.
            Refused: it does not take this request.
            EngineDown: it does not answer as it did when it was tried, or the end never came.
        """
        version = self._version
        if self._lacks is None or version is None:
            raise EngineDown(f"{self.url}: not tried yet")
        if request.version not in (None, version):
            raise WrongVersion(f"holds version {version}, asked for {request.version}")
        tells = not self._lacks
        body = self._body(request, tells)
        try:
            async with self._http.post(f"{self.url}/completions", json=body, headers=self._headers) as answer:
                if answer.status != 200:
                    # No word of its explanation, which may hold the developer's code and goes into a log.
                    failed = Refused if answer.status in REFUSALS else EngineDown
                    raise failed(f"{self.url}: HTTP {answer.status}")
                finished = False
                async for line in answer.content:  # to its end, so that the connection can be used again
                    if finished or (delta := _delta(line, version, tells)) is None:
                        continue
                    if finished := delta.finish is not None:
                        # Somebody else may have exchanged the weights meanwhile.
                        delta = replace(delta, version=await self._held())
                    yield delta
            if not finished:
                raise EngineDown(f"{self.url}: ended in the middle of a completion")
        except Refused:
            raise
        except EngineDown:
            self._lacks = None
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError) as error:
            self._lacks = None
            raise EngineDown(f"{self.url}: {type(error).__name__}") from error

    async def health(self) -> Health:
        """What it holds; tried first where that is not known. Raises EngineDown."""
        try:
            return await self._look()
        except EngineDown:
            self._lacks = None
            raise
        except (LookupError, TypeError) as error:
            self._lacks = None
            raise EngineDown(f"{self.url}: not OpenAI's API: {type(error).__name__}: {error}") from error

    async def swap(self, path: str, version: str) -> Swapped:
        """Exchange the weights for those in a directory that the server sees under the same path.

        Raises:
            SwapRefused: they do not fit, or the server holds its version for good.
            EngineDown: anything else. Where it failed half-way the server stands still, and is not used until it was restarted.
        """
        if self.fixed:
            raise SwapRefused(f"{self.url} serves version {self._setting.version} for good (serving.engines: swap = 'none')")
        started = time.perf_counter()
        await self._rpc("tabloop_stage", path)
        while (status := await self._rpc("tabloop_stage_status"))["busy"]:
            await asyncio.sleep(0.02)
        if status["error"]:
            raise SwapRefused(f"version {version}: {status['error']}")
        staged = time.perf_counter()
        await self._label(HALF)  # until all of it is done: whatever ends this in the middle, nobody uses the server then
        # keep: running requests are preempted, and the cache of the old weights is dropped.
        await self._call("POST", f"{self._root}/pause?mode=keep")
        paused = time.perf_counter()
        commit_ms = float(await self._rpc("tabloop_commit", path))
        await self._call("POST", f"{self._root}/resume")
        await self._label(LABEL + version)
        self._version = version
        return Swapped(version, (staged - started) * 1e3, (paused - staged) * 1e3, commit_ms)

    async def _look(self) -> Health:
        found = await self._call("GET", f"{self.url}/models")
        models = {str(entry["id"]): entry for entry in found["data"]}
        if self._setting.model not in models:
            raise EngineDown(f"{self.url}: serving.engines names model {self._setting.model!r}, it has {list(models)[:5]}")
        self._fit(models[self._setting.model].get("max_model_len"))
        self._version = await self._held()
        if self._lacks is None:
            self._lacks = await self._try()
            self._say(self._lacks)
        return Health(self._version, pid=0, running=0)

    def _fit(self, room: object) -> None:
        """Take note of its context, where it tells that. Raises EngineDown where nothing fits."""
        if not isinstance(room, int) or room == self.room:
            return
        policy = self._policy
        least = policy.room - policy.renderer.most_code + LEAST_CODE
        if room < least:
            raise EngineDown(f"{self.url}: max_model_len is {room}, completions and {LEAST_CODE} tokens of code need {least}")
        if room < policy.room:
            log.warning("%s: max_model_len is %d and prompts with completions have up to %d: cut", self.url, room, policy.room)
        self.room = room

    def _body(self, request: Request, tells: bool) -> dict[str, Any]:
        """What it is asked for a completion."""
        body: dict[str, Any] = {
            "model": self._setting.model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stream": True,
        }
        if tells:
            told = {"prompt": request.prompt_token_ids, "stop_token_ids": request.stop_token_ids}
            return body | told | {"logprobs": 0, "return_token_ids": True} | AS_SAMPLED
        return body | {"prompt": self._text(request.prompt_token_ids), "stop": list(fim.SPECIAL_TOKENS[:MOST_STOPS])}

    def _text(self, token_ids: list[int]) -> str:
        """A rendered prompt as text, frame included; markers in the code itself were taken apart when it was rendered."""
        return self._policy.tokenizer.decode(token_ids, skip_special_tokens=False)

    async def _held(self) -> str:
        """The version that it holds. Raises EngineDown."""
        if self.fixed:
            return self._setting.version
        label = (await self._call("GET", f"{self._root}/weight_info"))["weight_version"]
        if label == HALF:
            raise EngineDown(f"{self.url}: a swap failed half-way, its weights may be of two versions; restart it")
        return label.removeprefix(LABEL) if label.startswith(LABEL) else self._setting.version

    async def _try(self) -> str:
        """Why what it serves cannot be trained on, or the empty text. Raises EngineDown."""
        policy = self._policy
        prompt = policy.renderer.render(*TRIED_WITH)
        try:
            hot, cold = await self._one_token(self._text(prompt), 1.0), await self._one_token(prompt, 0.5)
        except Refused as error:
            return f"it refuses to be asked for token ids and log-probabilities ({error})"
        if not hot.get("token_ids"):
            return "it gives no token ids"
        if not (_top(hot) and _top(cold)):
            return "it gives no log-probabilities"
        if hot.get("prompt_token_ids") != prompt:
            return "its tokenizer is another than model.base's: it reads the same prompt as other token ids"
        temperatures = sorted({sampling.temperature for sampling in policy.sampling.values()} - {1.0})
        if temperatures and not _of_its_temperature(_top(hot), _top(cold)):
            return (
                f"its log-probabilities are those of temperature 1, and serving.sampling.temperature is {temperatures[0]:g}: "
                "start it with --logprobs-mode processed_logprobs"
            )
        return ""

    async def _one_token(self, prompt: str | list[int], temperature: float) -> dict[str, Any]:
        """The choice of one sampled token with all that can be told of it."""
        asked = {"model": self._setting.model, "prompt": prompt, "max_tokens": 1, "temperature": temperature}
        told = {"logprobs": 5, "return_token_ids": True, "return_tokens_as_token_ids": True, **AS_SAMPLED}
        return (await self._call("POST", f"{self.url}/completions", json=asked | told))["choices"][0]

    def _say(self, lacks: str) -> None:
        if not lacks:
            log.info("%s: token ids and log-probabilities are as our own engines give them", self.url)
            return
        withheld = any(sampling.withhold_below for sampling in self._policy.sampling.values())
        beside = "; serving.sampling.withhold_below cannot be kept to there" if withheld else ""
        log.warning("%s: its completions are logged and not trained on: %s%s", self.url, lacks, beside)

    @property
    def _root(self) -> str:
        """Where vLLM's development endpoints are."""
        return self.url.removesuffix("/v1")

    async def _label(self, label: str) -> None:
        await self._call("POST", f"{self._root}/update_weight_version", json={"new_version": label})

    async def _rpc(self, method: str, *arguments: str) -> Any:
        """What the first worker answers."""
        body = {"method": method, "args": list(arguments)}
        return (await self._call("POST", f"{self._root}/collective_rpc", timeout=SWAP_SECONDS, json=body))["results"][0]

    async def _call(self, method: str, url: str, *, timeout: float = 10.0, **body: Any) -> Any:
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._http.request(method, url, headers=self._headers, timeout=limit, **body) as answer:
                if answer.status in REFUSALS:
                    raise Refused(f"HTTP {answer.status}: {(await answer.text())[:200]}")
                if answer.status == 404 and not url.startswith(self.url):
                    raise EngineDown(
                        f"{url}: not found; serving.engines: swap = 'vllm' needs a vLLM that was started with "
                        "VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls serving.engine.worker.SwapWorker"
                    )
                if answer.status != 200:
                    raise EngineDown(f"{url}: HTTP {answer.status}: {(await answer.text())[:200]}")
                return await answer.json(content_type=None)
        except EngineDown:
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError) as error:
            raise EngineDown(f"{url}: {type(error).__name__}: {error}") from error


def _delta(line: bytes, version: str, tells: bool) -> Delta | None:
    """One line of the stream; none where it says nothing. Raises ValueError, LookupError, TypeError where it is not OpenAI's."""
    if not line.startswith(DATA):
        return None
    data = line.removeprefix(DATA).strip()
    if data == DONE:
        if tells:
            raise ValueError("[DONE] before a finish_reason")
        return Delta([], [], version, "stop", text="")  # not every service gives a reason
    chunk = json.loads(data)
    if "error" in chunk:
        raise ValueError("an error in the stream")
    if not chunk["choices"]:
        return None
    choice = chunk["choices"][0]
    reason = choice.get("finish_reason")
    finish = FINISHES.get(reason, "abort") if reason else None
    if not tells:
        return Delta([], [], version, finish, text=choice.get("text") or "")
    logprobs = choice["logprobs"]["token_logprobs"] if choice["token_ids"] else []
    if len(logprobs) != len(choice["token_ids"]):
        raise ValueError("not as many log-probabilities as token ids")
    return Delta(choice["token_ids"], logprobs, version, finish)


def _top(choice: Mapping[str, Any]) -> dict[str, float]:
    """Log-probabilities of the likeliest first tokens."""
    return ((choice.get("logprobs") or {}).get("top_logprobs") or [{}])[0] or {}


def _of_its_temperature(hot: Mapping[str, float], cold: Mapping[str, float]) -> bool:
    """Whether log-probabilities at temperature 0.5 lie twice as far apart as at 1: those of the logits do not."""
    both = hot.keys() & cold.keys()
    spread, colder = (max(at[token] for token in both) - min(at[token] for token in both) for at in (hot, cold))
    return colder > 1.5 * spread
