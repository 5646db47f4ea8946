"""Costs that the plan of capacity computes with. Each has its source: measured, with machine and command, or assumed.

infra/docs/measurements.md has the measurements and describes the machines.
"""

from dataclasses import dataclass

XEON = 2.26
"""Speed of a core of the Xeon over the reference's, an EPYC's: costs that the Xeon took are given for the reference's core."""


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
    0.0062, "measured 2026-11-26 on the EPYC: CPU of the app for a completion of 10 tokens; `tabloop bench capacity`"
)
EVENT_CPU = Cost(0.00082, "measured 2026-11-26 on the EPYC: CPU of the app for an event; `tabloop bench capacity`")
IDLE_CPU = Cost(
    0.0125 * XEON,
    "measured 2026-11-28 on the Xeon: CPU a second of a replica without requests, 11 to 16 ms; `tabloop bench fleet`",
)
ALONE_CPU = Cost(
    0.0082 * XEON,
    "measured 2026-11-28 on the Xeon: CPU of a completion where nothing else runs, so that each token wakes the app, 7.5 to "
    "9.1 ms; `tabloop bench capacity`",
)
EVENT_ALONE_CPU = Cost(
    0.0042 * XEON,
    "measured 2026-11-28 on the Xeon: the same for an event, 3.1 to 5.3 ms; assumed: linear in the time that is idle",
)
COMPLETION_BYTES = Cost(
    690.0, "measured 2026-11-26 on the EPYC: a completion at 123 tokens of prompt; assumed: 1.6 bytes for each further token"
)
EVENT_BYTES = Cost(
    551.0, "measured 2026-11-26 on the EPYC: an event at 123 tokens of prompt; assumed: 0.67 bytes for each further token"
)
MEASURED_PROMPT, COMPLETION_TOKEN_BYTES, EVENT_TOKEN_BYTES = 123, 1.6, 0.67
LOOK_CPU = Cost(
    0.78,
    "measured 2026-11-26 on the EPYC: CPU of a look; fitted to twelve looks there and on the Xeon, 0.78 to 1.22 times each; "
    "`tabloop bench scale`, `tabloop bench capacity`",
)
LOOK_ROW_CPU = Cost(
    3.1e-6 * XEON,
    "measured 2026-11-27 on the Xeon: CPU for a request of the test, of 1,200 to 80,000; parts of `tabloop bench scale`",
)
LOOK_GETS = Cost(
    32.0,
    "measured 2026-11-27 on the Xeon: 32 GETs of a look in the afternoon, one for each day of the test, and one for each object "
    "of the hour that has not settled; `tabloop bench scale`",
)
JOINED_CPU = Cost(194e-6, "measured 2026-11-26 on the EPYC: CPU of a request, all of them trained on; `tabloop bench capacity`")
OBJECT_CPU = Cost(7.4e-3, "measured 2026-11-26 on the EPYC: CPU of an event object that is read; `tabloop bench capacity`")
READ_CPU = Cost(
    47e-6,
    "measured 2026-11-26 on the EPYC: CPU of a request whose user is outside a sample of 1 in 8, of 100,000 requests "
    "(collect.most_requests)",
)
FLOW_BYTES = Cost(0.17e9, "measured 2026-11-27 on the Xeon: the flow's process before it reads; `tabloop bench capacity`")
PARTITION_BYTES = Cost(
    8_900.0,
    "measured 2026-11-28 on the Xeon: a request of a partition that is joined, with its events, and no more for an object; "
    "`tabloop bench capacity`",
)
READ_BYTES = Cost(2_130.0, "measured 2026-11-27 on the Xeon: a request of the window, of a million; `tabloop bench join`")
TRAINED_BYTES = Cost(1_800.0, "measured 2026-11-27 on the Xeon: beside that, a request of the batch; `tabloop bench join`")
STORE_READS = Cost(
    100.0,
    "assumed: MLflow on PostgreSQL answers 100 a second; measured 2026-11-27 on the Xeon: the local stack's answers 120; "
    "`tabloop bench capacity`",
)
GPU_RATE = Cost(143.0, "measured 2026-11-27 on an H200: completions of 24 tokens after 512 a second, 1.5B, 32 streams")
ADAPTERS = Cost(0.5, "measured 2026-11-27 on an H200: the rate of four versions of 1.5B as adapters over that of merged weights")
ENGINE_BYTES = Cost(2.8e9, "measured 2026-11-26 on an H100: an engine of 1.5B holds 2.8 GB beside weights and cache")
