"""The current verdict of the A/B test for other systems, read only.

GET /admin/verdict is a measurement for the web metric of Argo Rollouts: a JSON object under `data`, on which its conditions are
evaluated. POST /admin/verdict/promote and /reject are webhooks for Flagger, which takes a 2xx as yes and any other status as no.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from infra.records import Decision, ExperimentRecord, Verdict, VerdictName
from serving.gateway.generation import Unavailable
from serving.gateway.openapi import SECURITY, TEXT, Schema, answer_schema, answers, optional
from serving.status.data import StatusData, decision_of, shown_looks
from serving.status.sources import StatusSources

NUMBER: Schema = {"type": "number"}
COUNTS: Schema = {"type": "object", "additionalProperties": {"type": "integer"}}
FIELDS: dict[str, Schema] = {
    "verdict": TEXT,
    "reason": TEXT,
    "running": {"type": "boolean"},
    "experiment": optional(TEXT),
    "champion": optional(TEXT),
    "challenger": optional(TEXT),
    "time": optional(NUMBER),
    "estimate": optional(NUMBER),
    "low": optional(NUMBER),
    "high": optional(NUMBER),
    "requests": COUNTS,
    "users": COUNTS,
}
LOSSES: tuple[VerdictName, ...] = ("reject", "breach")
"""Verdicts that end a test, or take a version back, for a loss."""
MEASUREMENT = answer_schema(("data",), data=answer_schema(tuple(FIELDS), **FIELDS))


def add_verdict(app: FastAPI, sources: StatusSources) -> None:
    """Add the routes of the verdict. They change nothing, so that a password may replace the token in a header."""

    async def measured(request: Request, project: str) -> dict[str, Any]:
        credential = await sources.access.check(request.headers, "metrics", password=True)
        loop = sources.loop(project, credential)
        await loop.refresh()
        if problem := loop.data.problems.get("versions"):
            raise Unavailable(f"the registry does not answer, so the verdict is unknown: {problem}")
        return measurement(loop.arms.experiment, loop.data)

    @app.get("/admin/verdict", responses=answers(MEASUREMENT), openapi_extra=SECURITY)
    async def verdict(request: Request, project: str = "") -> Response:
        return JSONResponse({"data": await measured(request, project)})

    async def confirm(request: Request, project: str, expected: Sequence[VerdictName]) -> Response:
        found = await measured(request, project)
        return JSONResponse({"data": found}, 200 if found["verdict"] in expected else 409)

    @app.post("/admin/verdict/promote", responses=answers(MEASUREMENT, 200, 409), openapi_extra=SECURITY)
    async def confirm_promotion(request: Request, project: str = "") -> Response:
        return await confirm(request, project, ["promote"])

    @app.post("/admin/verdict/reject", responses=answers(MEASUREMENT, 200, 409), openapi_extra=SECURITY)
    async def confirm_rejection(request: Request, project: str = "") -> Response:
        return await confirm(request, project, LOSSES)


def measurement(running: ExperimentRecord | None, data: StatusData) -> dict[str, Any]:
    """Return the verdict on the running test, else on the last one; "none" where nothing was tested yet."""
    last = _last(running, data)
    time: float | None = None
    if last:
        verdict, experiment, time = last.verdict, last.experiment, last.decided
    elif running:  # opened since the gate last looked
        verdict, experiment = Verdict(verdict="undecided", reason="the gate has not looked yet"), running
    else:
        empty: dict[str, Any] = dict.fromkeys(FIELDS)
        return empty | {"verdict": "none", "reason": "nothing was tested yet", "running": False, "requests": {}, "users": {}}
    return {
        **{name: getattr(verdict, name) for name in ("verdict", "reason", "estimate", "low", "high", "requests", "users")},
        "running": running is not None,
        "experiment": experiment.id,
        "champion": experiment.champion,
        "challenger": experiment.challenger,
        "time": time,
    }


def _last(running: ExperimentRecord | None, data: StatusData) -> Decision | None:
    """Return the newest verdict on the running test, else on the last one; where a probation or the anchor took the version of
    that test back, the verdict that did."""
    last, beside = shown_looks(data, running)
    if last is None or (not running and last.experiment.stage.name == "anchor"):  # no test is known
        return None
    if beside and beside.verdict.verdict in LOSSES and beside.experiment.challenger == last.experiment.challenger:
        return beside
    return decision_of(data, last.experiment.id) or last
