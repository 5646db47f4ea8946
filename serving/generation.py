"""One completion from prompt to record."""

import logging
import math
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from tokenizers import Tokenizer

from infra.fim import FRAME_TOKENS, Renderer
from infra.records import Arm, Completion, FinishReason
from infra.settings.schema import Sampling
from serving.access import Caller
from serving.arms import Route
from serving.engines import EngineDown, Refused, WrongVersion
from serving.protocol import Delta, Request, Span
from serving.text import Reader

log = logging.getLogger(__name__)
TOKEN_CHARACTERS = 8
"""Characters that kept tokens have on average at most (code: 3 to 4); text farther from the cursor is not even tokenised."""


@dataclass(frozen=True)
class Asked:
    """What a client wants, in any dialect."""

    prefix: str
    suffix: str
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    line_ms: float | None = None
    """Once there is a line's end, no token is waited for that comes longer than this after the first (llama.cpp's
    t_max_predict_ms)."""
    language: str = ""
    """Of the code, as infra/language.py has it."""


class Unavailable(RuntimeError):
    """No engine can serve this now."""


class Unservable(ValueError):
    """The engines are up and do not take this request."""


@dataclass(frozen=True)
class Policy:
    """How everything is sampled, whatever the client says."""

    tokenizer: Tokenizer
    renderer: Renderer
    sampling: Mapping[Arm, Sampling]
    stop_token_ids: Sequence[int]

    @property
    def room(self) -> int:
        """Tokens that the longest prompt and its longest completion take."""
        longest = max(sampling.max_tokens for sampling in self.sampling.values())
        return self.renderer.most_code + FRAME_TOKENS + longest

    def prompt(self, asked: Asked, most: int | None = None) -> list[int]:
        """The prompt in the model's own order, of at most so many tokens."""
        renderer = self.renderer if most is None else self.renderer.within(most)
        prefix = asked.prefix[-renderer.max_prefix_tokens * TOKEN_CHARACTERS :]
        suffix = asked.suffix[: renderer.max_suffix_tokens * TOKEN_CHARACTERS]
        return renderer.render(prefix, suffix)

    def request(self, asked: Asked, prompt: list[int], route: Route) -> Request:
        """What an engine is asked for: the server's own sampling, and of the client only to stop earlier."""
        sampling = self.sampling[route.arm]
        return Request(
            prompt_token_ids=prompt,
            max_tokens=sampling.max_tokens if asked.max_tokens is None else min(asked.max_tokens, sampling.max_tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            stop_token_ids=list(self.stop_token_ids),
            version=route.version,
        )


@dataclass
class Generation:
    """Samples one completion and keeps what its record needs."""

    id: str
    asked: Asked
    caller: Caller
    routes: Sequence[Route]
    policy: Policy
    arrived: float
    """Unix seconds."""
    started: float = field(default_factory=time.perf_counter)
    finish: FinishReason = "disconnected"
    """What the record says unless the end is reached."""
    withheld: bool = False
    """Sampled, and not given out: the model itself thought too little of it."""

    def __post_init__(self) -> None:
        self.prompt = self._whole = self.policy.prompt(self.asked)
        self._reader = Reader(self.policy.tokenizer, self.asked.stop)
        self._route: Route | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._seen: list[str] = []
        self._spans: tuple[Span, ...] = ()
        self._first: float | None = None
        self._ended = self.started
        self._request: Request | None = None
        self._held = False
        self._tells = True

    @property
    def text(self) -> str:
        """What was given out."""
        return "" if self._held else self._reader.text

    @property
    def finished(self) -> bool:
        """No more is sampled."""
        return self.finish != "disconnected"

    @property
    def version(self) -> str:
        """Policy version that the request was sent to; empty before."""
        return self._route.version if self._route else ""

    @property
    def sampled(self) -> int | None:
        """Tokens so far; none where the server does not tell."""
        return len(self._token_ids) if self._tells else None

    @property
    def sampling(self) -> dict[str, float]:
        """What it is really sampled with, under llama.cpp's names."""
        asked = self._request
        return {"n_predict": asked.max_tokens, "temperature": asked.temperature, "top_p": asked.top_p} if asked else {}

    @property
    def first_ms(self) -> float | None:
        """From the request's arrival to the first token."""
        return None if self._first is None else (self._first - self.started) * 1e3

    @property
    def total_ms(self) -> float:
        """From the request's arrival to the end of generation."""
        return (self._ended - self.started) * 1e3

    async def texts(self) -> AsyncGenerator[str]:
        """Text as it is sampled; where some is withheld, at its end and only if it is worth showing.

        An engine that fails before its first token is replaced by the next route.

        Raises:
            Unavailable: no engine could start.
            Unservable: an engine could, and refused this request.
        """
        refused = None
        for route in self.routes:
            self._route = route
            self._seen = [route.version]
            try:
                async for text in self._sample(route):
                    yield text
            except (EngineDown, WrongVersion) as error:
                log.warning("slot %d: %s", route.slot.index, error)
                if isinstance(error, Refused) and self._first is None:
                    refused = error
                    continue
                route.slot.proven = (None, None)  # no traffic until the follower has looked
                if self._first is not None:
                    self.finish = "error"
                    if not self._held:
                        yield self._reader.flush()
                    return
            else:
                return
        self._route = None
        if refused:
            raise Unservable("no engine takes this request: ask with less code around the cursor") from refused
        raise Unavailable("no engine is ready; try again")

    def record(self) -> Completion | None:
        """The event; none where no engine took the request."""
        if self._route is None or self._request is None:
            return None
        version, mixed = self._versions()
        counted = version == self._route.version and not mixed
        return Completion(
            id=self.id,
            time=self.arrived,
            project=self.caller.project,
            user=self.caller.user,
            client=self.caller.client,
            opted_out=self.caller.opted_out,
            prefix=self.asked.prefix,
            suffix=self.asked.suffix,
            language=self.asked.language,
            prompt_token_ids=tuple(self.prompt) if self._tells else (),
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            token_ends=tuple(self._reader.ends),
            behaviour_logprobs="known" if self._tells else "unknown",
            text=self.text,
            finish_reason=self.finish,
            policy_version=version,
            mixed=mixed,
            withheld=self.withheld,
            pinned=self._route.pinned,
            arm=self._route.arm,
            experiment=self._route.experiment if counted else "",
            temperature=self._request.temperature,
            top_p=self._request.top_p,
            max_tokens=self._request.max_tokens,
            ttft_ms=self.first_ms,
            total_ms=self.total_ms,
        )

    async def _sample(self, route: Route) -> AsyncGenerator[str]:
        request = self.policy.request(self.asked, self._whole, route)
        room = route.slot.engine.room
        if room is not None and len(self._whole) + request.max_tokens > room:
            fitting = self.policy.prompt(self.asked, room - request.max_tokens)
            request = replace(request, prompt_token_ids=fitting)
        self._request, self.prompt = request, request.prompt_token_ids
        floor = self.policy.sampling[route.arm].withhold_below
        self._tells = not route.slot.engine.lacks
        self._held = floor > 0 and self._tells
        route.slot.in_flight += 1
        try:
            async with aclosing(route.slot.engine.generate(request)) as deltas:
                async for delta in deltas:
                    text = self._take(delta)
                    if self._held and math.exp(math.fsum(self._logprobs)) < floor:
                        self.withheld, self.finish = True, "stop"  # more tokens only make it less likely
                        return
                    cut: FinishReason | None = "stop" if self._reader.stopped else None
                    if not cut and not delta.finish and self._late():
                        cut = "length"
                    self.finish = cut or self.finish
                    if text and not self._held:
                        yield text
                    if cut:
                        break
            rest = self._reader.flush()
            if self._held:
                self._held, rest = False, self._reader.text
            if rest:
                yield rest
        finally:
            self._ended = time.perf_counter()
            route.slot.in_flight -= 1

    def _late(self) -> bool:
        """Whether the client has its line and waits for no more."""
        most = self.asked.line_ms
        return (
            most is not None
            and self._first is not None
            and "\n" in self._reader.text
            and (time.perf_counter() - self._first) * 1e3 > most
        )

    def _take(self, delta: Delta) -> str:
        if self._first is None:
            self._first = time.perf_counter()
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs
        if delta.version not in self._seen:
            self._seen.append(delta.version)
        if delta.finish:
            self.finish = "error" if delta.finish == "abort" else delta.finish
            self._spans = delta.spans
        return self._reader.feed(delta.token_ids) if delta.text is None else self._reader.feed_text(delta.text)

    def _versions(self) -> tuple[str, bool]:
        """Version that sampled the tokens, and whether there was more than one.

        The spans of a finished completion are exact. One cut short has only the labels of its deltas, which may run ahead of
        the tokens by one: it is pure when they all agree with the version it was sent to.
        """
        versions = [version for version, start, end in self._spans if end > start] or self._seen
        return versions[-1], len(set(versions)) > 1
