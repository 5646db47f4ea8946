"""Costs that the plan of capacity computes with. Each has its source: measured, with machine and command, or assumed.

infra/docs/measurements.md has the measurements and describes the machines. CPU is that of a core of the EPYC, the reference:
COMPLETION_CPU over the CPU of a completion on another core, by `tabloop bench capacity`, is that core's speed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The cost of a unit, and its source."""

    value: float
    basis: str


@dataclass(frozen=True)
class Row:
    """A part, its needs, and the source of their numbers."""

    part: str
    needs: str
    basis: str
    used: float = 0.0
    """Share of its limit that is used; 0 where more of it can be added."""


def number(value: float) -> str:
    """Return a number with two digits that count, or as a whole one."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


COMPLETION_CPU = Cost(
    0.0025, "measured 2026-11-29 on the EPYC: CPU of the app for a completion of 10 tokens; `tabloop bench capacity`"
)
EVENT_CPU = Cost(0.00037, "measured 2026-11-29 on the EPYC: CPU of the app for an event; `tabloop bench capacity`")
IDLE_CPU = Cost(
    0.0083,
    "measured 2026-11-29 on the EPYC: CPU a second of an app without requests, 7 ms, and 9 with HAProxy's checks; "
    "`tabloop bench capacity`, `tabloop bench fleet`",
)
ALONE_CPU = Cost(
    0.0064,
    "measured 2026-11-29 on the EPYC: CPU of a completion where nothing else runs, so that each token wakes the app; "
    "`tabloop bench capacity`",
)
EVENT_ALONE_CPU = Cost(
    0.0028,
    "measured 2026-11-29 on the EPYC: the same for an event, 2.6 and 3.0 ms; assumed: linear in the time that is idle",
)
COMPLETION_BYTES = Cost(
    690.0, "measured 2026-11-26 on the EPYC: a completion at 123 tokens of prompt; assumed: 1.6 bytes for each further token"
)
EVENT_BYTES = Cost(
    551.0, "measured 2026-11-26 on the EPYC: an event at 123 tokens of prompt; assumed: 0.67 bytes for each further token"
)
MEASURED_PROMPT, COMPLETION_TOKEN_BYTES, EVENT_TOKEN_BYTES = 123, 1.6, 0.67
LOOK_CPU = Cost(
    0.43,
    "measured 2026-11-29 on the EPYC: CPU of a look; fitted to nine looks, 0.89 to 1.14 times each; `tabloop bench scale`, "
    "`tabloop bench capacity`",
)
LOOK_ROW_CPU = Cost(
    1.7e-6, "measured 2026-11-29 on the EPYC: CPU for a request of the test, of 10,000 to 160,000; `tabloop bench scale`"
)
LOOK_GETS = Cost(
    32.0,
    "measured 2026-11-27 on the Xeon: 32 GETs of a look in the afternoon, one for each day of the test, and one for each object "
    "of the hour that has not settled; `tabloop bench scale`",
)
JOINED_CPU = Cost(
    100e-6, "measured 2026-11-29 on the EPYC: CPU of a request that is joined, fitted to two windows; `tabloop bench capacity`"
)
OBJECT_CPU = Cost(
    2.1e-3, "measured 2026-11-29 on the EPYC: CPU of an event object that is read, fitted to the same; `tabloop bench capacity`"
)
READ_CPU = Cost(
    18e-6,
    "measured 2026-11-29 on the EPYC: CPU of a request whose user is outside the sample (collect.most_requests), of 1.25 to 10 "
    "million; `tabloop bench window`",
)
FLOW_BYTES = Cost(0.17e9, "measured 2026-11-27 on the Xeon: the flow's process before it reads; `tabloop bench capacity`")
JOIN_BYTES = Cost(90e6, "measured 2026-11-29 on the EPYC: a process that joins, beside its requests; `tabloop bench capacity`")
PARTITION_BYTES = Cost(
    7_300.0,
    "measured 2026-11-29 on the EPYC: a request of a partition that is joined, with its events, and no more for an object; "
    "`tabloop bench capacity`",
)
READ_BYTES = Cost(1_720.0, "measured 2026-11-30 on the EPYC: a request of the window, of a million; `tabloop bench join`")
TRAINED_BYTES = Cost(1_680.0, "measured 2026-11-30 on the EPYC: beside that, a request of the batch; `tabloop bench join`")
STORE_READS = Cost(
    100.0,
    "assumed: MLflow on PostgreSQL answers 100 a second; measured 2026-11-27 on the Xeon: the local stack's answers 120; "
    "`tabloop bench capacity`",
)
GPU_RATE = Cost(143.0, "measured 2026-11-27 on an H200: completions of 24 tokens after 512 a second, 1.5B, 32 streams")
ADAPTERS = Cost(0.5, "measured 2026-11-27 on an H200: the rate of four versions of 1.5B as adapters over that of merged weights")
ENGINE_BYTES = Cost(2.8e9, "measured 2026-11-26 on an H100: an engine of 1.5B holds 2.8 GB beside weights and cache")
