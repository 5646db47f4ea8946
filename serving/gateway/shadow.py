"""Copies of requests for a challenger in the shadow stage of its test (infra.records.Stage); nobody sees its answers.

A copy is made after the developer's response was sent and its event recorded, so it delays nothing. A share of the requests, by a
hash of their ids, is copied. While MOST_AT_ONCE copies run, further ones are dropped, so a slow challenger or a machine under
load gets fewer. A copy is not a completion: no arm counts it and its text is not stored. Requests of users who opted out of
logging or of tests are never copied.
"""

import asyncio
import time
import uuid
import zlib
from contextlib import aclosing
from dataclasses import replace
from difflib import SequenceMatcher

from infra.model.line_ends import first_line
from infra.records import ExperimentRecord, ShadowCopy
from serving.gateway.generation import Generation, Unavailable, Unservable
from serving.gateway.showing import ShowTerms
from serving.recording.recorder import Recorder
from serving.slots.arms import Route, Slot
from serving.slots.loops import LoopArms
from serving.slots.policy import Policy

MOST_AT_ONCE = 2
COMPARED_CHARACTERS = 400
"""Characters of a text that are compared: the time grows with their square."""


class Shadow:
    """Makes the copies of one app."""

    def __init__(self, arms: LoopArms, policy: Policy, recorder: Recorder) -> None:
        self._arms = arms
        self._policy = policy
        self._recorder = recorder
        self._copies: set[asyncio.Task[None]] = set()

    def offer(self, answered: Generation) -> None:
        """Start a copy of an answered request, if it is in the share and fewer than MOST_AT_ONCE copies run."""
        stage = self._arms.shadow(answered.caller.project, answered.arrived)
        if stage is None or not _may_be_copied(answered, *stage):
            return
        if len(self._copies) >= MOST_AT_ONCE:
            self._recorder.metrics.shadow_copies.labels("dropped").inc()
            return
        task = asyncio.create_task(self._copy(answered, *stage))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def _copy(self, answered: Generation, experiment: ExperimentRecord, slot: Slot) -> None:
        copy = self._generation(answered, Route(slot, experiment.challenger, "challenger", "", sampled_as="challenger"))
        started = time.perf_counter()
        try:
            async with aclosing(copy.texts()) as texts:
                async for _ in texts:
                    pass
        except (Unavailable, Unservable):
            copy.finish = "error"
        row = compare(answered, copy, experiment, (time.perf_counter() - started) * 1e3)
        self._recorder.metrics.shadow_copies.labels("failed" if row.failed else "answered").inc()
        self._recorder.record_copy(row)

    def _generation(self, answered: Generation, route: Route) -> Generation:
        """Return the copy: the same prompt and limits, and at most as many tokens as were sampled, so that the times compare."""
        tokens = answered.sampled_tokens or answered.request.max_tokens
        request = replace(answered.request, max_tokens=tokens)
        terms = ShowTerms("all", None)
        return Generation(f"shd-{uuid.uuid4()}", request, answered.caller, [route], self._policy, terms, answered.arrived)


def compare(answered: Generation, copy: Generation, experiment: ExperimentRecord, copy_ms: float) -> ShadowCopy:
    """Return the record of a copy, which took `copy_ms` milliseconds until its end or its failure (`finish` is then "error")."""
    failed = copy.finish not in ("stop", "length")
    texts = [generation.generated[:COMPARED_CHARACTERS] for generation in (answered, copy)]
    lines = [first_line(text).rstrip() for text in texts]
    return ShadowCopy(
        id=copy.id,
        time=answered.arrived,
        experiment=experiment.id,
        champion=experiment.champion,
        challenger=experiment.challenger,
        failed=failed,
        champion_empty=not texts[0].strip(),
        challenger_empty=not texts[1].strip(),
        champion_first_ms=answered.first_ms or 0.0,
        challenger_first_ms=copy.first_ms,
        champion_ms=answered.total_ms,
        challenger_ms=copy_ms if failed else copy.total_ms,
        same_line=not failed and lines[0] == lines[1],
        similarity=0.0 if failed else SequenceMatcher(None, texts[0], texts[1], autojunk=False).ratio(),
    )


def _may_be_copied(answered: Generation, experiment: ExperimentRecord, slot: Slot) -> bool:
    """Return whether the champion answered the request normally, and its user takes part in logging and tests."""
    caller, route = answered.caller, answered.route
    usual = answered.finish in ("stop", "length") and answered.first_ms is not None and not answered.exploring
    champions = route is not None and route.slot is not slot and not route.pinned and route.version == experiment.champion
    share = experiment.plan.shadow_share if experiment.plan else 0.0
    chosen = zlib.crc32(f"shadow {answered.id}".encode()) < share * 2**32
    return usual and champions and chosen and caller.experiments and not caller.opted_out
