"""An external server as the engine of a slot: a team's own vLLM, or any service with OpenAI's completions API.

A probe request determines the server's mode, at the first inspection and after each outage:

    tokens   it accepts and returns our token ids, with log-probabilities of the distribution it samples from (vLLM): its
             completions are recorded and trained on like our own engines'
    text     anything else: prompt and completion are text, recorded with behaviour_logprobs "unknown" and never trained on

Its weights are fixed, or swapped through vLLM's development endpoints with our worker extension (engine/worker.py).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from infra.model import fim
from infra.model.fim.escapes import Escapes
from infra.settings.schema import External
from serving.engine.protocol import Delta, EngineCopy, EngineRequest, Health, SwapRefused, SwapResult, WrongVersion
from serving.slots.client import SWAP_SECONDS, EngineDown, RequestRefused
from serving.slots.completion_stream import CompletionStream
from serving.slots.policy import Policy

log = logging.getLogger(__name__)
PROBE = ("def add(first, second):\n    return ", "\n\n\nprint(add(1, 2))\n")
"""Code before and after the cursor in the probe's prompt."""
NEUTRAL_SAMPLING = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Sent with every request; vLLM takes absent values from the checkpoint's generation_config.json."""
MAX_STOPS = 4
"""Most stop strings in OpenAI's API."""
MIN_CODE_TOKENS = 16
"""Fewest tokens of code for which a context must have space."""
LABEL, PARTIAL_LABEL = "tabloop-", "tabloop-half-loaded"
"""Prefix of the label that stores the version in the server, for every replica and restarted app; the label during a swap."""
REST_SECONDS = 0.2
"""Seconds for what follows a finished completion: the numbers of tokens, [DONE] and the end of the body."""
MAX_UNKNOWN = 100
"""Most finish reasons that are logged."""
REFUSALS = (400, 413, 422)
"""HTTP statuses of a request that the server refuses for its contents."""


class ExternalEngine:
    """The client of one external server, over a shared HTTP session; a client.SlotEngine."""

    problem, behind = "", False

    def __init__(self, http: aiohttp.ClientSession, setting: External, policy: Policy) -> None:
        self._http = http
        self._setting = setting
        self._policy = policy
        self._headers = {"Authorization": f"Bearer {setting.token.get_secret_value()}"} if setting.token else {}
        self._version: str | None = None
        self._untrainable_reason: str | None = None
        """None: not probed yet, or down since."""
        self._fetched = self._loaded = ("", "")
        """The version that this app fetched for it last, and loaded into it last, each with its source."""
        self.max_context: int | None = None
        self.url = setting.url
        controls = fim.control_tokens(policy.tokenizer)
        self._escapes = Escapes({*fim.SPECIAL_TOKENS, *filter(fim.is_marker, controls)})
        self._unknown: set[str] = set()
        """Finish reasons that were logged."""
        self.weights_fixed = setting.swap == "none"

    @property
    def untrainable_reason(self) -> str:
        return "not probed yet" if self._untrainable_reason is None else self._untrainable_reason

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """Sample a completion. Closing the generator closes the connection, at which vLLM and most services stop.

        Raises:
            WrongVersion: the server holds another version.
            RequestRefused: the server refuses this request.
            EngineDown: the response does not match the probe's, or the stream ended early.
        """
        version = self._version
        if self._untrainable_reason is None or version is None:
            raise EngineDown(f"{self.url}: not probed yet")
        if request.version not in (None, version):
            raise WrongVersion(f"holds version {version}, asked for {request.version}")
        has_tokens = not self._untrainable_reason
        body = self._body(request, has_tokens)
        try:
            async with self._http.post(f"{self.url}/completions", json=body, headers=self._headers) as response:
                if response.status != 200:
                    # Without the response's text, which may quote the developer's code: this goes into a log.
                    error_type = RequestRefused if response.status in REFUSALS else EngineDown
                    raise error_type(f"{self.url}: HTTP {response.status}")
                stream = CompletionStream(version, None if has_tokens else self._escapes, self._unknown_reason)
                async for line in response.content:
                    if (delta := stream.delta(line)) is None:
                        continue
                    if delta.finish is None:
                        yield delta
                        continue
                    # Another replica may have swapped the weights in the meantime.
                    delta = replace(delta, version=await self._current_version())
                    yield delta
                    await _read_rest(response)
                    return
            raise EngineDown(f"{self.url}: ended in the middle of a completion")
        except RequestRefused:
            raise
        except EngineDown:
            self._untrainable_reason = None
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError, AttributeError) as error:
            self._untrainable_reason = None
            raise EngineDown(f"{self.url}: {type(error).__name__}") from error

    async def health(self) -> Health:
        """Return the version that the server holds, probing the server first if needed. Raises EngineDown."""
        try:
            return await self._inspect()
        except EngineDown:
            self._untrainable_reason = None
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self._untrainable_reason = None
            raise EngineDown(f"{self.url}: not OpenAI's API: {type(error).__name__}: {error}") from error

    async def fetch(self, version: str, source: str, path: str) -> EngineCopy:
        """Return the directory on the app's disk: the server sees it under the same path."""
        self._fetched = version, source
        return EngineCopy(path, "held")

    async def swap(self, path: str, version: str) -> SwapResult:
        """Load the weights in a directory that the server sees under the same path.

        Raises:
            SwapRefused: the checkpoint does not fit, or the server's weights are fixed.
            EngineDown: any other failure. If the swap fails halfway, the server stays paused and unused until it is restarted.
        """
        if self.weights_fixed:
            raise SwapRefused(f"{self.url} always serves version {self._setting.version} (serving.engines: swap = 'none')")
        started = time.perf_counter()
        await self._rpc("tabloop_stage", path)
        while (status := await self._rpc("tabloop_stage_status"))["busy"]:
            await asyncio.sleep(0.02)
        if status["error"]:
            raise SwapRefused(f"version {version}: {status['error']}")
        staged = time.perf_counter()
        await self._set_label(PARTIAL_LABEL)  # if the swap ends early, no replica uses the server
        # "keep" preempts running requests and drops the KV cache of the old weights.
        await self._call("POST", f"{self._root}/pause?mode=keep")
        paused = time.perf_counter()
        commit_ms = float(await self._rpc("tabloop_commit", path))
        await self._call("POST", f"{self._root}/resume")
        await self._set_label(LABEL + version)
        self._version, self._loaded = version, self._fetched
        return SwapResult(version, (staged - started) * 1e3, (paused - staged) * 1e3, commit_ms)

    async def _inspect(self) -> Health:
        listing = await self._call("GET", f"{self.url}/models")
        models = {str(entry["id"]): entry for entry in listing["data"]}
        if self._setting.model not in models:
            raise EngineDown(f"{self.url}: serving.engines names model {self._setting.model!r}, it has {list(models)[:5]}")
        self._set_max_context(models[self._setting.model].get("max_model_len"))
        self._version = await self._current_version()
        if self._untrainable_reason is None:
            self._untrainable_reason = await self._probe()
            self._log_probe(self._untrainable_reason)
        return Health(self._version, pid=0, running=0, sources=dict([self._loaded]))

    def _set_max_context(self, max_model_len: object) -> None:
        """Store the server's context length, if it names one. Raises EngineDown if it is too short for any prompt."""
        if not isinstance(max_model_len, int) or max_model_len == self.max_context:
            return
        needed, policy = self._policy.max_context, self._policy
        least = needed - policy.renderer.max_code_tokens + MIN_CODE_TOKENS
        if max_model_len < least:
            raise EngineDown(
                f"{self.url}: max_model_len is {max_model_len}, completions and {MIN_CODE_TOKENS} tokens of code need {least}"
            )
        if max_model_len < needed:
            log.warning(
                "%s: max_model_len is %d, prompts and completions take up to %d: cutting prompts", self.url, max_model_len, needed
            )
        self.max_context = max_model_len

    def _body(self, request: EngineRequest, has_tokens: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._setting.model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stream": True,
        }
        if has_tokens:
            tokens = {"prompt": request.prompt_token_ids, "stop_token_ids": request.stop_token_ids}
            return body | tokens | {"logprobs": 0, "return_token_ids": True} | NEUTRAL_SAMPLING
        return body | {"prompt": self._text(request.prompt_token_ids), "stop": list(fim.SPECIAL_TOKENS[:MAX_STOPS])}

    def _text(self, token_ids: list[int]) -> str:
        """Return a prompt as text with its FIM markers, those inside the code itself escaped."""
        return self._policy.renderer.text_of(token_ids, self._escapes.escape)

    def _unknown_reason(self, reason: str) -> None:
        """Log a finish reason that is not known, once."""
        if reason not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
            self._unknown.add(reason)
            log.warning("%s: unknown finish_reason %r: taken as the end of the completion", self.url, reason)

    async def _current_version(self) -> str:
        """Return the version that the server holds. Raises EngineDown."""
        if self.weights_fixed:
            return self._setting.version
        label = (await self._call("GET", f"{self._root}/weight_info"))["weight_version"]
        if label == PARTIAL_LABEL:
            raise EngineDown(f"{self.url}: a swap failed halfway, its weights may be of two versions; restart it")
        return label.removeprefix(LABEL) if label.startswith(LABEL) else self._setting.version

    async def _probe(self) -> str:
        """Return why the server's completions cannot be trained on, or "". Raises EngineDown."""
        policy = self._policy
        prompt = policy.renderer.render(*PROBE)
        try:
            hot, cold = await self._sample_token(self._text(prompt), 1.0), await self._sample_token(prompt, 0.5)
        except RequestRefused as error:
            return f"it refuses requests for token ids and log-probabilities ({error})"
        if not hot.get("token_ids"):
            return "it returns no token ids"
        if not (_top(hot) and _top(cold)):
            return "it returns no log-probabilities"
        if hot.get("prompt_token_ids") != prompt:
            return "its tokenizer differs from model.base's: it encodes the same prompt as other token ids"
        temperatures = sorted({sampling.temperature for sampling in policy.sampling.values()} - {1.0})
        if temperatures and not _scaled_by_temperature(_top(hot), _top(cold)):
            return (
                f"its log-probabilities are those of temperature 1, and serving.sampling.temperature is {temperatures[0]:g}: "
                "start it with --logprobs-mode processed_logprobs"
            )
        return ""

    async def _sample_token(self, prompt: str | list[int], temperature: float) -> dict[str, Any]:
        """Sample one token and return its choice, with token ids and log-probabilities requested."""
        body = {"model": self._setting.model, "prompt": prompt, "max_tokens": 1, "temperature": temperature}
        outputs = {"logprobs": 5, "return_token_ids": True, "return_tokens_as_token_ids": True, **NEUTRAL_SAMPLING}
        return (await self._call("POST", f"{self.url}/completions", json=body | outputs))["choices"][0]

    def _log_probe(self, untrainable_reason: str) -> None:
        if not untrainable_reason:
            log.info("%s: returns token ids and log-probabilities like our own engines", self.url)
            return
        withheld = any(sampling.withhold_below for sampling in self._policy.sampling.values())
        note = "; serving.sampling.withhold_below has no effect there" if withheld else ""
        log.warning("%s: completions are recorded but not trained on: %s%s", self.url, untrainable_reason, note)

    @property
    def _root(self) -> str:
        """URL of vLLM's development endpoints."""
        return self.url.removesuffix("/v1")

    async def _set_label(self, label: str) -> None:
        await self._call("POST", f"{self._root}/update_weight_version", json={"new_version": label})

    async def _rpc(self, method: str, *arguments: str) -> Any:
        """Call a worker method and return the first worker's result."""
        body = {"method": method, "args": list(arguments)}
        return (await self._call("POST", f"{self._root}/collective_rpc", timeout=SWAP_SECONDS, json=body))["results"][0]

    async def _call(self, method: str, url: str, *, timeout: float = 10.0, **body: Any) -> Any:
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._http.request(method, url, headers=self._headers, timeout=limit, **body) as response:
                if response.status in REFUSALS:
                    raise RequestRefused(f"HTTP {response.status}: {await _beginning(response)}")
                if response.status == 404 and not url.startswith(self.url):
                    raise EngineDown(
                        f"{url}: not found; serving.engines: swap = 'vllm' needs a vLLM started with VLLM_SERVER_DEV_MODE=1 and "
                        "--worker-extension-cls serving.engine.worker.SwapWorker"
                    )
                if response.status != 200:
                    raise EngineDown(f"{url}: HTTP {response.status}: {await _beginning(response)}")
                return await response.json(content_type=None)
        except EngineDown:
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise EngineDown(f"{url}: {type(error).__name__}: {error}") from error


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """Return the first characters of an error's page, which a proxy may have written in another encoding."""
    return (await response.text(errors="replace"))[:200]


async def _read_rest(response: aiohttp.ClientResponse) -> None:
    """Read what follows a finished completion, so that the connection can be reused; it is closed if that fails or takes long."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
        async with asyncio.timeout(REST_SECONDS):
            async for _ in response.content.iter_any():
                pass


def _top(choice: Mapping[str, Any]) -> dict[str, float]:
    """Return the log-probabilities of the likeliest first tokens."""
    return ((choice.get("logprobs") or {}).get("top_logprobs") or [{}])[0] or {}


def _scaled_by_temperature(hot: Mapping[str, float], cold: Mapping[str, float]) -> bool:
    """Return whether log-probabilities at temperature 0.5 lie twice as far apart as at 1; log-probabilities of the raw logits do
    not."""
    both = hot.keys() & cold.keys()
    spread, colder = (max(at[token] for token in both) - min(at[token] for token in both) for at in (hot, cold))
    return colder > 1.5 * spread
