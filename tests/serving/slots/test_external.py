"""An external server in a slot: the requests it gets, the records of its completions, and the reports of its limits."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tokenizers import Tokenizer

from infra.model import fim
from infra.settings import SettingsError, load
from infra.settings.schema import External
from serving.slots.external import ExternalEngine
from tests.serving.apps import aiohttp_app
from tests.serving.fakes import TEXT, House
from tests.serving.helpers import until

KNOWN = {"model", "prompt", "max_tokens", "temperature", "top_p", "stop", "stream"}
Page = tuple[int, bytes, str]
"""Status, body and type of an answer."""
LOGITS = {10: 2.0, 11: 1.0, 12: 0.5, 13: -1.0, 14: -2.0}


class FakeService:
    """A server of OpenAI's completions.

    `outputs` names its outputs. "text": text only, and requests for more are refused; "ids": also token ids; "raw": also
    log-probabilities of the logits; "processed": also log-probabilities of the distribution that it samples from.
    """

    def __init__(self, tokenizer: Tokenizer, outputs: str = "text") -> None:
        self.tokenizer = tokenizer
        self.outputs = outputs
        self.shift = 0
        """Added to each token id of a text prompt, as if the service had another tokenizer."""
        self.reply = TEXT
        self.lines: list[bytes] | None = None
        """The lines of the stream instead of the reply's."""
        self.delay = 0.0
        self.fails = False
        self.max_context: int | None = None
        """Maximum tokens of a prompt and its completion together; the service reports it and refuses longer requests."""
        self.refuses = False
        self.page: Page | None = None
        """What a proxy answers in its place."""
        self.requests: list[dict] = []
        self.disconnects = 0
        self.token = "their-secret"
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/completions", self._completions)])
        async with aiohttp_app(app, handler_cancellation=True) as address:
            self.url = f"{address}/v1"
            yield

    async def _models(self, http: web.Request) -> web.Response:
        if self.page:
            status, body, kind = self.page
            return web.Response(status=status, body=body, content_type=kind)
        if http.headers.get("authorization") != f"Bearer {self.token}":
            return web.json_response({"error": {"message": "who are you"}}, status=401)
        limits = {} if self.max_context is None else {"max_model_len": self.max_context}
        return web.json_response({"data": [{"id": "their-model", **limits}]})

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        if self.outputs == "text" and (unknown := body.keys() - KNOWN):
            return web.json_response({"error": {"message": f"unrecognized argument: {sorted(unknown)[0]}"}}, status=400)
        if not body.get("stream"):
            return web.json_response({"choices": [self._probe_choice(body)]})
        self.requests.append(body)
        if self.refuses or (self.max_context is not None and len(body["prompt"]) + body["max_tokens"] > self.max_context):
            return web.json_response({"error": {"message": "too long: " + str(body["prompt"])}}, status=400)
        response = web.StreamResponse()
        await response.prepare(http)
        if self.lines is not None:
            await response.write(b"".join(line + b"\n\n" for line in self.lines))
            return response
        ids = self.tokenizer.encode(self.reply).ids[: body["max_tokens"]]
        try:
            for index, token in enumerate(ids):
                if self.fails and index == 2:
                    assert http.transport
                    http.transport.abort()
                    return response
                choice: dict[str, Any] = {"text": self.tokenizer.decode([token]), "finish_reason": None}
                if body.get("return_token_ids"):
                    choice |= {"token_ids": [token], "logprobs": {"token_logprobs": [-0.5]}}
                if index == len(ids) - 1:
                    choice["finish_reason"] = "length"
                await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
                await asyncio.sleep(self.delay)
            await response.write(b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n')
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            raise
        return response

    def _probe_choice(self, body: dict) -> dict:
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else [i + self.shift for i in self.tokenizer.encode(prompt).ids]
        temperature = body["temperature"] if self.outputs == "processed" else 1.0
        total = math.log(sum(math.exp(x / temperature) for x in LOGITS.values()))
        top = {f"token_id:{token}": x / temperature - total for token, x in LOGITS.items()}
        logprobs = {"token_logprobs": [max(top.values())], "top_logprobs": [top]}
        return {"text": "x", "token_ids": [10], "prompt_token_ids": ids, "logprobs": None if self.outputs == "ids" else logprobs}


def setting(service: FakeService, **fields: str) -> External:
    values = {"kind": "external", "url": service.url, "model": "their-model", "token": service.token, "version": "7"}
    return External.model_validate(values | fields)


@asynccontextmanager
async def house_with(
    service: FakeService, directory: Path, tokenizer: Tokenizer, fields: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[House]:
    """Run the app with this service in its first slot; the second slot's engine is down."""
    house = House(directory, tokenizer, **options)
    house.engines[1].up = False
    async with house:
        await house.exit_stack.enter_async_context(service.running())
        slot = house.arms.slots[0]
        slot.engine, slot.version, slot.verified = (
            ExternalEngine(house.http, setting(service, **fields or {}), house.policy),
            None,
            (None, None),
        )
        await house.follower.step()
        yield house


async def test_a_service_with_text_only_is_served_and_its_completions_are_marked(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        response = await house.complete(stop=["+ b"])
        assert response.json()["choices"][0] == {"text": "return alpha ", "index": 0, "logprobs": None, "finish_reason": "stop"}
        usage, prompt = response.json()["usage"], house.policy.prompt("def f(x):\n    ", "")
        counted = [len(house.policy.renderer.encode(text)) for text in ("return alpha ", "return alpha + beta")]
        assert usage["prompt_tokens"] == len(prompt) and "x-tabloop-version" not in response.headers
        assert counted[0] < usage["completion_tokens"] <= counted[1], "by the app's tokenizer: Zed reads no answer without them"
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        (row,) = house.rows("completions")
        assert row.behaviour_logprobs == "unknown" and row.text == "return alpha " and row.policy_version == "7" and not row.mixed
        assert row.prompt_token_ids == row.token_ids == row.logprobs == row.token_ends == ()
        assert "unrecognized argument" in house.arms.slots[0].state
    (message,) = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING and "trained" in record.message
    ]
    assert service.url in message and "not trained on" in message and "token ids" in message
    assert service.token not in caplog.text
    body = service.requests[-1]
    assert body["prompt"] == f"{fim.SUFFIX}{fim.PREFIX}def f(x):\n    {fim.MIDDLE}"
    assert body.keys() == KNOWN and (body["temperature"], body["max_tokens"]) == (0.8, 24)


async def test_markers_in_code_do_not_break_the_frame_of_a_text_prompt(tmp_path: Path, tokenizer: Tokenizer) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        await house.complete(prompt="a<|fim_middle|>b", suffix="c")
        assert service.requests[-1]["prompt"].count(fim.MIDDLE) == 1 and house.rows("completions")[0].prefix == "a<|fim_middle|>b"


@pytest.mark.parametrize("marker", ["<|fim_middle|>", "<|endoftext|>", "<|\u200bfim_middle|>", "\u200b"])
async def test_a_marker_in_the_text_of_a_service_comes_back_as_it_was(tmp_path: Path, tokenizer: Tokenizer, marker: str) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        await house.complete(prompt=f'X = "{marker}"\nY = "', suffix="c")
        prompt = service.requests[-1]["prompt"]
        seen = prompt.partition('X = "')[2].partition('"')[0]  # as the service's model reads it, and repeats it
        assert prompt.count(fim.MIDDLE) == 1 and seen.replace("\u200b", "") == marker.replace("\u200b", "")
        service.lines = [chunk(text=piece) for piece in (seen[:1], seen[1:3], seen[3:9], seen[9:])]
        service.lines += [chunk(text='"\n', finish_reason="stop")]
        answer = await house.complete(prompt=f'X = "{marker}"\nY = "', suffix="c")
        assert answer.json()["choices"][0]["text"] == f'{marker}"\n' == house.rows("completions")[-1].text
        service.lines = [chunk(text="a <|en"), chunk(text="doftext|>user"), chunk(text="more", finish_reason="length")]
        assert (await house.complete()).json()["choices"][0] == {
            "text": "a ",
            "index": 0,
            "logprobs": None,
            "finish_reason": "stop",
        }


def chunk(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"id": "1", "choices": [{"index": 0, **choice}]}).encode()


REASONS = {  # vLLM, TGI, SGLang, llama.cpp, Ollama, LM Studio, TensorRT-LLM, and hosted services
    "stop": (
        "stop",
        "eos",
        "eos_token",
        "stop_sequence",
        "STOP",
        "eosFound",
        "stopStringFound",
        "end_turn",
        "tool_calls",
        "COMPLETE",
    ),
    "length": ("length", "max_tokens", "MAX_TOKENS", "model_length", "maxPredictedTokensReached", "content_filter", "limit"),
    "error": ("abort", "error", "cancelled", "timeout", "insufficient_system_resource", "failed"),
}


@pytest.mark.parametrize(("finish", "reason"), [(finish, reason) for finish, every in REASONS.items() for reason in every])
@pytest.mark.parametrize("outputs", ["text", "processed"])
async def test_every_finish_reason_in_use_is_recorded(
    tmp_path: Path, tokenizer: Tokenizer, outputs: str, finish: str, reason: str
) -> None:
    service = FakeService(tokenizer, outputs)
    async with house_with(service, tmp_path, tokenizer) as house:
        ids = tokenizer.encode("ab").ids
        tokens = {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}} if outputs == "processed" else {}
        nothing = {"token_ids": None, "logprobs": None} if outputs == "processed" else {}
        service.lines = [
            b": keep-alive",
            b'data: {"error": null, "choices": null, "usage": null}',
            chunk(text="ab", finish_reason=None, **tokens),
            chunk(text=None, finish_reason=reason, **nothing),
            b'data: {"choices": [], "usage": {"total_tokens": 2}, "error": null}',
            b"data: [DONE]",
        ]
        answer = await house.complete()
        (row,) = house.rows("completions")
        assert (answer.status_code, row.text, row.finish_reason) == (200, "ab", finish)
        assert house.arms.slots[0].up, "an end of one completion is no failure of the service"


async def test_an_unknown_finish_reason_is_an_end_and_logged_once(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        service.lines = [chunk(text="ab", finish_reason="Ünknown" * 20), b"data: [DONE]"]
        for _ in range(2):
            await house.complete()
        assert [row.finish_reason for row in house.rows("completions")] == ["stop", "stop"]
        (message,) = [r.getMessage() for r in caplog.records if "finish_reason" in r.getMessage()]
        assert service.url in message and "ünknown" in message and len(message) < 200


@pytest.mark.parametrize(
    "failure",
    [
        b'data: {"error": {"message": "out of memory", "code": 500}}',
        b'data: {"error": "out of memory", "error_type": "generation"}',
        b'data: {"object": "error", "message": "out of memory", "choices": null}',
        b'data: {"detail": "out of memory"}',
        b'error: {"code": 500}',
        b"event: error",
        b"data: not JSON",
    ],
)
async def test_an_error_in_a_stream_is_a_failure(tmp_path: Path, tokenizer: Tokenizer, failure: bytes) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        service.lines = [chunk(text="ab", finish_reason=None), failure]
        await house.complete()
        (row,) = house.rows("completions")
        assert (row.text, row.finish_reason) == ("ab", "error") and not house.arms.slots[0].up


async def test_tokens_and_log_probabilities_are_recorded_like_those_of_our_engine(tmp_path: Path, tokenizer: Tokenizer) -> None:
    service = FakeService(tokenizer, "processed")
    async with house_with(service, tmp_path, tokenizer) as house:
        assert (await house.complete()).json()["choices"][0]["text"] == TEXT
        (row,) = house.rows("completions")
        ids = tokenizer.encode(TEXT).ids
        assert row.behaviour_logprobs == "known" and row.token_ids == tuple(ids) and row.logprobs == (-0.5,) * len(ids)
        assert service.requests[-1]["prompt"] == list(row.prompt_token_ids) and row.token_ends[-1] == len(TEXT)
        # The checkpoint's own sampling settings have no effect, and the FIM markers end the completion.
        assert (service.requests[-1]["top_k"], service.requests[-1]["repetition_penalty"]) == (0, 1.0)
        assert set(service.requests[-1]["stop_token_ids"]) == {tokenizer.token_to_id(t) for t in fim.SPECIAL_TOKENS}
        assert house.arms.slots[0].state == "version 7"


@pytest.mark.parametrize(
    ("outputs", "shift", "reason"),
    [
        ("text", 0, "refuses requests for token ids"),
        ("ids", 0, "no log-probabilities"),
        ("raw", 0, "temperature 1, and serving.sampling.temperature is 0.8"),
        ("processed", 1, "tokenizer"),
        ("processed", 0, ""),
    ],
)
async def test_missing_outputs_of_a_service_are_detected(
    tmp_path: Path, tokenizer: Tokenizer, outputs: str, shift: int, reason: str
) -> None:
    service = FakeService(tokenizer, outputs)
    service.shift = shift
    async with house_with(service, tmp_path, tokenizer) as house:
        untrainable_reason = house.arms.slots[0].engine.untrainable_reason
        assert (reason in untrainable_reason) if reason else untrainable_reason == ""
        assert (await house.complete()).json()["choices"][0]["text"] == TEXT
        assert house.rows("completions")[0].behaviour_logprobs == ("unknown" if reason else "known")


async def test_a_service_is_probed_again_after_an_outage(tmp_path: Path, tokenizer: Tokenizer) -> None:
    service = FakeService(tokenizer, "processed")
    async with house_with(service, tmp_path, tokenizer) as house:
        service.fails = True
        assert (await house.complete()).json()["choices"][0]["finish_reason"] == "length"
        service.fails, service.outputs = False, "ids"
        await house.follower.step()
        assert "no log-probabilities" in house.arms.slots[0].state
        assert (await house.complete()).status_code == 200
        rows = house.rows("completions")
        assert [(row.finish_reason, row.behaviour_logprobs) for row in rows] == [("error", "known"), ("length", "unknown")]


@pytest.mark.parametrize("max_context", [60, 87, 4096])
async def test_a_prompt_is_cut_to_the_services_context_and_recorded_as_sent(
    tmp_path: Path, tokenizer: Tokenizer, max_context: int
) -> None:
    service = FakeService(tokenizer, "processed")
    service.max_context = max_context
    async with house_with(service, tmp_path, tokenizer) as house:
        lines = "".join(f"value_{n} = {n}\n" for n in range(99))
        response = await house.complete(prompt=lines, suffix=lines)
        assert (response.status_code, response.json()["choices"][0]["text"]) == (200, TEXT)
        (row,) = house.rows("completions")
        assert list(row.prompt_token_ids) == service.requests[-1]["prompt"] and row.max_tokens == 24
        prompt_ids = row.prompt_token_ids
        prefix_text = tokenizer.decode(prompt_ids[prompt_ids.index(tokenizer.token_to_id(fim.PREFIX)) + 1 :])
        assert lines.endswith(prefix_text) and len(prefix_text) > 10
        assert 0.6 * min(max_context, 87) < len(prompt_ids) + 24 <= min(max_context, 87)


async def test_a_context_that_is_too_small_is_reported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    service = FakeService(tokenizer)
    service.max_context = 32
    async with house_with(service, tmp_path, tokenizer) as house:
        assert "max_model_len is 32, completions and 16 tokens of code need 43" in house.arms.slots[0].state


async def test_a_refused_request_does_not_mark_the_service_as_down(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    service = FakeService(tokenizer, "processed")
    async with house_with(service, tmp_path, tokenizer) as house:
        service.refuses = True
        for stream in (True, False):
            response = await house.complete(stream=stream)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
        assert house.arms.slots[0].up and house.rows("completions") == []
        assert "HTTP 400" in caplog.text and "too long" not in caplog.text, "the service's message may quote the developer's code"
        house.engines[1].up = True
        await house.follow()
        assert (await house.complete()).json()["choices"][0]["text"] == "return gamma"
        service.refuses = False
        assert (await house.complete()).json()["choices"][0]["text"] == TEXT


async def test_a_disconnect_ends_the_request_to_the_service(tmp_path: Path, tokenizer: Tokenizer) -> None:
    service = FakeService(tokenizer)
    service.delay = 0.2
    async with house_with(service, tmp_path, tokenizer) as house:
        task = asyncio.create_task(house.complete())
        while not service.requests[1:]:  # the first request is the smoke test
            await asyncio.sleep(0.01)
        task.cancel()
        await until(lambda: service.disconnects and house.rows("completions"))
        assert house.rows("completions")[0].finish_reason == "disconnected"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token": "wrong"}, "401"),
        ({"model": "other"}, "names model 'other', it has ['their-model']"),
        ({"swap": "vllm"}, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
async def test_a_wrong_setting_is_reported(tmp_path: Path, tokenizer: Tokenizer, fields: dict[str, str], message: str) -> None:
    async with house_with(FakeService(tokenizer), tmp_path, tokenizer, fields) as house:
        assert not house.arms.ready and message in house.arms.slots[0].state


async def test_a_fixed_version_serves_the_arm_that_names_it_and_no_other_version_is_loaded(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    async with house_with(FakeService(tokenizer), tmp_path, tokenizer) as house:
        for version in ("1", "7"):
            house.add_version(version)
        house.engines[1].up = True
        house.registry.aliases = {"champion": "1", "challenger": "7"}
        await house.follow()
        assert (house.arms.champion, house.arms.challenger) == (1, 0) and house.arms.problems == {}
        house.registry.aliases = {"champion": "7"}
        await house.follow()
        assert house.arms.champion == 0
        house.add_version("8")
        house.registry.aliases = {"champion": "1", "challenger": "8"}
        await house.follow()
        assert (house.arms.champion, house.arms.challenger) == (1, None)
        assert "version 8: no slot holds it" in house.arms.problems["challenger"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "external", "token": "s3cr3t", "url": "http://h/v1"}, ["model", "Field required"]),
        ({"kind": "external", "token": "s3cr3t", "model": "m", "url": "h:8000"}, ["url", "expected http://HOST:PORT/v1"]),
        ({"kind": "external", "model": "m", "url": "http://u:s3cr3t@h/v1"}, ["url", "`token`"]),
        ({"kind": "other", "token": "s3cr3t", "url": "http://h/v1", "model": "m"}, ["kind", "'external'"]),
    ],
)
def test_the_error_for_an_invalid_engine_table_hides_its_token(table: dict[str, str], words: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        load(environment={"TABLOOP_SERVING__ENGINES": json.dumps([table, "http://127.0.0.1:1"])})
    assert "s3cr3t" not in str(error.value)
    assert [word for word in ["serving.engines", *words] if word not in str(error.value)] == []


class Breaking(FakeService):
    """Breaks the connection, or keeps it open, behind the last line."""

    stays = 0.0

    async def _completions(self, http):  # type: ignore[no-untyped-def]
        response = await super()._completions(http)
        if self.lines is not None and response.prepared:
            await asyncio.sleep(self.stays)
            if not self.stays:
                http.transport.abort()
        return response


@pytest.mark.parametrize("stays", [0.0, 600.0])
@pytest.mark.parametrize("done", [False, True])
async def test_what_comes_behind_a_finished_completion_changes_nothing(
    tmp_path: Path, tokenizer: Tokenizer, done: bool, stays: float
) -> None:
    service = Breaking(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        service.stays = stays
        service.lines = [chunk(text="ab", finish_reason=None), chunk(text="", finish_reason="stop"), *[b"data: [DONE]"] * done]
        async with asyncio.timeout(60):
            assert (await house.complete()).json()["choices"][0]["finish_reason"] == "stop"
        assert house.rows("completions")[0].finish_reason == "stop" and house.arms.slots[0].up


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ((r"\ud83d", r"\udc4d"), "👍"),
        ((r"x \ud83d", "y"), "x \ufffdy"),
        ((r"\udc4d", r"z\ud83d"), "\ufffdz\ufffd"),
        ((r"\ud83d\udc4d", ""), "👍"),
    ],
)
async def test_half_a_character_of_a_service_costs_no_completion(
    tmp_path: Path, tokenizer: Tokenizer, sent: tuple[str, str], text: str, stream: bool
) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        service.lines = [f'data: {{"choices": [{{"text": "{each}"}}]}}'.encode() for each in sent] + [b"data: [DONE]"]
        assert (await house.complete(stream=stream)).status_code == 200
        assert [row.text for row in house.rows("completions")] == [text]


async def test_bytes_of_a_service_that_are_no_utf8_cost_no_engine(tmp_path: Path, tokenizer: Tokenizer) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        service.lines = [b'data: {"choices": [{"text": "caf\xe9", "finish_reason": "stop"}]}']
        assert (await house.complete()).json()["choices"][0]["text"] == "caf\ufffd" and house.arms.slots[0].up


@pytest.mark.parametrize(
    "lines",
    [
        [b'\xef\xbb\xbfdata: {"choices": [{"text": "ab"}]}', b"data: [DONE]"],
        [b"data: null", chunk(text="ab", finish_reason="stop")],
        [chunk(text="ab", finish_reason=None), b'data: "[DONE]"'],
        [b'data: {"error": {"code": null, "message": null}, "choices": [{"text": "ab", "finish_reason": "stop"}]}'],
        [b'data: {"choices": [{"delta": {"content": "ab"}}]}', b"data: [DONE]"],
    ],
    ids=["a byte order mark", "null", "a quoted end", "an error of nulls", "a chat's delta"],
)
async def test_odd_forms_of_a_stream_are_read(tmp_path: Path, tokenizer: Tokenizer, lines: list[bytes]) -> None:
    service = FakeService(tokenizer)
    async with house_with(service, tmp_path, tokenizer) as house:
        service.lines = lines
        assert (await house.complete()).json()["choices"][0]["text"] == "ab" and house.arms.slots[0].up
