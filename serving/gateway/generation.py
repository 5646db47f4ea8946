"""One completion from prompt to record."""

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from infra.model.line_ends import line_end_of
from infra.model.showing import Place
from infra.records import Completion, FinishReason
from serving.access import Caller
from serving.engine.protocol import Delta, EngineRequest, Span, WrongVersion
from serving.gateway.detokenizer import Detokenizer
from serving.gateway.showing import Display, ShowAll, ShowBest, ShowTerms, WithholdBelow
from serving.recording.traces import Times
from serving.slots.arms import Route
from serving.slots.client import EngineDown, OneOfSeveralDown, RequestRefused
from serving.slots.policy import Policy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompletionRequest:
    """The completion that a client requests, whatever its dialect."""

    prefix: str
    suffix: str
    max_tokens: int | None = None
    """The client's own limit; none: the server's."""
    stop: tuple[str, ...] = ()
    line_ms: float | None = None
    """Milliseconds after the first token after which sampling ends once the text has a line break (llama.cpp's
    t_max_predict_ms); none: no limit."""
    language: str = ""
    """Language of the code (infra/model/language.py); empty if the request does not name it."""
    path: str = ""
    """Path of the file, as sent, behind its repository where the request names one; never recorded. Empty if the request does not
    name it."""


NOT_READY = "no engine is ready; try again"


class Unavailable(RuntimeError):
    """No engine can serve the request now."""


class Unservable(ValueError):
    """Engines are up, and each refuses this request."""


@dataclass
class Generation:
    """Samples one completion and collects the fields of its record."""

    id: str
    request: CompletionRequest
    caller: Caller
    routes: Sequence[Route]
    """Slots to try, in order."""
    policy: Policy
    showing: ShowTerms
    arrived: float
    """Unix seconds."""
    file: str = ""
    """Keyed hash of the file's path; empty if the request does not name it."""
    started: float = field(default_factory=time.perf_counter)
    finish: FinishReason = "disconnected"
    """Stays "disconnected" until the end is reached."""
    exploring: bool = False
    """Sampled at the exploring temperature."""
    temperature: float | None = None
    """Temperature that a pinned request names; None: that of the settings."""

    def __post_init__(self) -> None:
        self.prompt = self._full_prompt = self.policy.prompt(self.request.prefix, self.request.suffix)
        self.engine_request: EngineRequest | None = None
        """The request as sent to the engine; None before."""
        self._line_end = line_end_of(self.request.prefix, self.request.suffix)
        self._detokenizer = Detokenizer(
            self.policy.tokenizer, self.request.stop, self.policy.stop_token_ids, line_end=self._line_end
        )
        self._route: Route | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._delta_versions: list[str] = []
        self._spans: tuple[Span, ...] = ()
        self._asked: float | None = None
        self._first: float | None = None
        self._ended = self.started
        self._display: Display = ShowAll()
        self._has_tokens = True
        self._rendered = time.perf_counter()

    @property
    def text(self) -> str:
        """Text that may be shown so far."""
        return self._detokenizer.text[: self._display.limit]

    @property
    def generated(self) -> str:
        """All text so far, including text that is not shown."""
        return self._detokenizer.generated

    @property
    def route(self) -> Route | None:
        """The route that samples, or sampled, the completion; None before."""
        return self._route

    @property
    def finished(self) -> bool:
        """Whether sampling has ended."""
        return self.finish != "disconnected"

    @property
    def version(self) -> str:
        """Policy version of the slot that received the request; empty before."""
        return self._route.version if self._route else ""

    @property
    def sampled_tokens(self) -> int | None:
        """Number of tokens so far; none if the server reports no tokens."""
        return len(self._token_ids) if self._has_tokens else None

    @property
    def first_ms(self) -> float | None:
        """Milliseconds from the request's arrival to the first token; none before it."""
        return None if self._first is None else (self._first - self.started) * 1e3

    @property
    def total_ms(self) -> float:
        """Milliseconds from the request's arrival to the end of generation."""
        return (self._ended - self.started) * 1e3

    def times(self, recording: tuple[float, float], answered: float) -> Times:
        """Return the times of the request's parts, for its trace; the arguments are moments of time.perf_counter."""
        since = self.started
        return Times(
            rendered=self._rendered - since,
            asked=None if self._asked is None else self._asked - since,
            first=None if self._first is None else self._first - since,
            ended=self._ended - since,
            recording=(recording[0] - since, recording[1] - since),
            answered=answered - since,
        )

    async def texts(self) -> AsyncGenerator[str]:
        """Yield text that may be shown, as soon as it may (serving/gateway/showing.py).

        When an engine fails before its first token, the next route is tried.

        Raises:
            Unavailable: no engine could start.
            Unservable: every engine that answered refused this request.
        """
        refusal = None
        for route in self.routes:
            self._route = route
            self._delta_versions = [route.version]
            try:
                async for text in self._sample(route):
                    yield text
            except (EngineDown, WrongVersion) as error:
                log.warning("slot %d: %s", route.slot.index, error)
                if isinstance(error, RequestRefused) and self._first is None:
                    refusal = error
                    continue
                if not isinstance(error, OneOfSeveralDown):
                    route.slot.verified = (None, None)  # no traffic until the follower has checked it
                if self._first is not None:
                    self.finish, shown = "error", len(self.text)
                    self._detokenizer.flush()
                    if rest := self.text[shown:]:
                        yield rest
                    return
            else:
                return
        self._route = None
        if refusal:
            raise Unservable("every engine refuses this request: send less code around the cursor") from refusal
        raise Unavailable(NOT_READY)

    def record(self) -> Completion | None:
        """Return the event; none if no engine took the request."""
        if self._route is None or self.engine_request is None:
            return None
        version, mixed = self._versions()
        in_experiment = version == self._route.version and not mixed
        return Completion(
            id=self.id,
            time=self.arrived,
            project=self.caller.project,
            user=self.caller.user,
            credential=self.caller.credential,
            client=self.caller.client,
            opted_out=self.caller.opted_out,
            prefix=self.request.prefix,
            suffix=self.request.suffix,
            language=self.request.language,
            file=self.file,
            prompt_token_ids=tuple(self.prompt) if self._has_tokens else (),
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            token_ends=tuple(self._detokenizer.ends),
            behaviour_logprobs="known" if self._has_tokens else "unknown",
            text=self.text,
            finish_reason=self.finish,
            policy_version=version,
            mixed=mixed,
            held_back=self._detokenizer.text[len(self.text) :],
            withheld=self._display.withheld,
            level=self._display.level or "",
            chance=self._display.chance,
            audited=self._display.audited,
            user_acceptance=self.showing.user_acceptance,
            project_acceptance=self.showing.project_acceptance,
            exploring=self.exploring,
            pinned=self._route.pinned,
            arm=self._route.arm,
            experiment=self._route.experiment if in_experiment else "",
            assigned=self._route.assigned,
            assigned_arm=self._route.assigned_arm,
            temperature=self.engine_request.temperature,
            top_p=self.engine_request.top_p,
            max_tokens=self.engine_request.max_tokens,
            ttft_ms=self.first_ms,
            total_ms=self.total_ms,
        )

    async def _sample(self, route: Route) -> AsyncGenerator[str]:
        engine = route.slot.engine
        self.engine_request = request = self._request_of(route)
        self.prompt = request.prompt_token_ids
        self._has_tokens = not engine.untrainable_reason
        self._display = display = self._display_of(route, request)
        shown = 0
        route.slot.in_flight += 1
        self._asked = time.perf_counter()
        try:
            async with aclosing(engine.generate(request)) as deltas:
                async for delta in deltas:
                    self._add(delta)
                    display.update(self._logprobs, self._detokenizer.ends, self._detokenizer.generated)
                    ended = self._detokenizer.stopped or self._detokenizer.ended or display.ended
                    cut: FinishReason | None = "stop" if ended else None
                    if not cut and not delta.finish and self._line_time_is_over():
                        cut = "length"
                    self.finish = cut or self.finish
                    if text := self.text[shown:]:
                        shown += len(text)
                        yield text
                    if cut:
                        break
            self._detokenizer.flush()
            display.finish(self._detokenizer.text)
            if rest := self.text[shown:]:
                yield rest
        finally:
            self._ended = time.perf_counter()
            route.slot.in_flight -= 1

    def _display_of(self, route: Route, request: EngineRequest) -> Display:
        """Return the display rule: by the version's estimate if it applies to the request, else by the settings."""
        estimate, asked, showing = route.estimate, self.request, self.showing
        holds = estimate and self._has_tokens and estimate.temperature == request.temperature
        if estimate and holds and showing.price is not None:
            place = Place(asked.prefix, asked.suffix, asked.language, showing.user_acceptance, showing.project_acceptance)
            return ShowBest(estimate.at(place), showing, showing.price, request.max_tokens)
        floor = self.policy.sampling[route.sampled_as].withhold_below
        return WithholdBelow(floor) if floor > 0 and self._has_tokens else ShowAll()

    def _request_of(self, route: Route) -> EngineRequest:
        """Return the engine's request, its prompt cut to the engine's context."""
        self.exploring = not route.pinned and self.policy.explores(route.sampled_as, self.id)
        request = self.policy.request(
            self._full_prompt, route.sampled_as, route.version, self.request.max_tokens, exploring=self.exploring
        )
        if self.temperature is not None:
            request = replace(request, temperature=self.temperature)
        max_context = route.slot.engine.max_context
        if max_context is None or len(self._full_prompt) + request.max_tokens <= max_context:
            return request
        prompt = self.policy.prompt(self.request.prefix, self.request.suffix, max_context - request.max_tokens)
        return replace(request, prompt_token_ids=prompt)

    def _line_time_is_over(self) -> bool:
        """Whether the text has a line break and the client's time for a line is over."""
        line_ms = self.request.line_ms
        return (
            line_ms is not None
            and self._first is not None
            and self._line_end in self._detokenizer.text
            and (time.perf_counter() - self._first) * 1e3 > line_ms
        )

    def _add(self, delta: Delta) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        if delta.version not in self._delta_versions:
            self._delta_versions.append(delta.version)
        if delta.finish:
            self.finish = "error" if delta.finish == "abort" else delta.finish
            self._spans = delta.spans
        if delta.text is None:
            self._detokenizer.feed(delta.token_ids)
            taken = len(self._detokenizer.ends) - len(self._token_ids)  # none behind a token that ends the completion
            self._token_ids += delta.token_ids[:taken]
            self._logprobs += delta.logprobs[:taken]
        else:
            self._detokenizer.feed_text(delta.text)

    def _versions(self) -> tuple[str, bool]:
        """Return the version that sampled the last tokens, and whether others sampled tokens too.

        A finished completion has exact spans. One cut short has only the versions of its deltas, which can be ahead of the tokens
        by one swap: it counts as unmixed if all deltas have the version that the request named.
        """
        versions = [version for version, start, end in self._spans if end > start] or self._delta_versions
        return versions[-1], len(set(versions)) > 1
