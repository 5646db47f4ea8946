"""The dashboards of learning (flows and cycles) and of the running test.

Every replica exports the same values, so a panel takes the highest. Each loop has series of its own: those of a project with a
champion of its own name it, and those of the common loop name none.
"""

from evals.docs.dashboards.board import Board, Query, bars, lines, number
from evals.docs.dashboards.serving import EVERY, quantiles

NOW = (
    number(
        "Newest cycle", "Time since it was sealed.", "time() - max by (project) (tabloop_cycle_sealed_timestamp_seconds)", "s"
    ),
    number("Its samples", "Completions that it trained on.", "max by (project) (tabloop_cycle_samples)"),
    number("Cycles failed in a row", "0: the last one did not fail.", 'max by (project) (tabloop_flow_failures{flow="cycle"})'),
    number("Waits for GPUs", "0: no cycle waits.", "max by (project) (tabloop_gpus_awaited_seconds)", "s"),
    number(
        "Last look",
        "Duration; the next one begins 20 s after the one before.",
        'max by (project) (tabloop_flow_seconds{flow="experiment"})',
        "s",
    ),
    number(
        "Last compaction",
        "Time since one ended well.",
        'time() - max(tabloop_flow_ended_well_timestamp_seconds{flow="compaction"})',
        "s",
    ),
)
CYCLES = (
    bars(
        "Requests by bucket",
        "Of the newest cycle's window. Each request is in exactly one.",
        Query("max by (project, bucket) (tabloop_cycle_requests)", "{{bucket}} {{project}}"),
    ),
    bars(
        "Quarantined requests",
        "By reason, of the same window.",
        Query("max by (project, reason) (tabloop_cycle_quarantined)", "{{reason}} {{project}}"),
    ),
    bars(
        "Time of each stage",
        "Of the newest run of the flow `cycle`.",
        Query("max by (project, stage) (tabloop_cycle_stage_seconds)", "{{stage}} {{project}}"),
        "s",
    ),
    lines(
        "How runs end",
        "1 for the state in which a flow last ended.",
        Query("max by (project, flow, state) (tabloop_flow_state)", "{{flow}}: {{state}} {{project}}"),
    ),
    lines(
        "Newest cycle's end",
        "1 for how it ended.",
        Query("max by (project, result) (tabloop_cycle_result)", "{{result}} {{project}}"),
    ),
    lines(
        "Signs",
        "1 where a part of the loop is as it should be, as on the status page.",
        Query("min by (project, sign) (tabloop_loop_ok)", "{{sign}} {{project}}"),
    ),
)
MEASURES = (
    lines(
        "Measures",
        "Of all requests of each cycle's window; infra/docs/how/measures.md has their definitions.",
        Query('max by (project, measure) (tabloop_measure{by="all",measure!~"kept.*"})', "{{measure}} {{project}}"),
        unit="percentunit",
    ),
    lines(
        "Kept characters per request",
        "Of the same windows.",
        Query(
            'max by (project) (tabloop_measure{by="all",measure="kept_characters_per_request"})', "kept characters {{project}}"
        ),
    ),
    lines(
        "Reads that fail",
        "1 where a replica gets no answer of registry or object store: the panels above are then old.",
        Query("max by (project, part) (tabloop_loop_unread)", "{{part}} {{project}}"),
    ),
)
LEARNING = Board(
    "learning",
    "tabloop: learning",
    "Flows and cycles, by what they leave in the object store.",
    (("Now", NOW), ("Cycles", CYCLES), ("What completions are worth", MEASURES)),
    since="now-7d",
)
TEST = (
    number("Challenger's share", "Of users, or of their blocks of time.", "max by (project) (tabloop_test_share)", "percentunit"),
    number("Planned end", "Time left.", "max by (project) (tabloop_test_planned_end_timestamp_seconds) - time()", "s"),
    number("Last look", "Time since.", "time() - max by (project) (tabloop_test_look_timestamp_seconds)", "s"),
    number("Requests", "On the smaller arm.", "max by (project) (tabloop_test_requests)"),
    number("Planned requests", "Of each arm.", "max by (project) (tabloop_test_planned_requests)"),
    lines(
        "Stage",
        "1 for the stage of the running test or probation.",
        Query("max by (project, stage) (tabloop_test_stage)", "{{stage}} {{project}}"),
    ),
)
DIFFERENCES = (
    lines(
        "Differences",
        "Challenger minus champion in each metric of the plan, by the newest look. Verdicts follow the bounds.",
        Query('max by (project, metric) (tabloop_test_difference{bound="estimate"})', "{{metric}} {{project}}"),
    ),
    lines(
        "Lower bounds",
        "A success metric whose lower bound is above 0 is surely better.",
        Query('max by (project, metric) (tabloop_test_difference{bound="low"})', "{{metric}} {{project}}"),
    ),
    lines(
        "Upper bounds",
        "Of the same intervals.",
        Query('max by (project, metric) (tabloop_test_difference{bound="high"})', "{{metric}} {{project}}"),
    ),
)
ARMS = (
    lines(
        "Completions by arm",
        "As served.",
        Query(f"sum by (arm) (rate(tabloop_completions_total{EVERY}))", "{{arm}}"),
        unit="reqps",
    ),
    *(
        lines(f"First token of the {arm}", "Median and slowest hundredth.", *quantiles_of, unit="s")
        for arm, quantiles_of in (
            (
                arm,
                tuple(
                    Query(q.expr.replace("_bucket[", f'_bucket{{arm="{arm}"}}['), q.legend)
                    for q in quantiles("tabloop_first_token_seconds", 0.5, 0.99)
                ),
            )
            for arm in ("champion", "challenger")
        )
    ),
)
EXPERIMENT = Board(
    "experiment",
    "tabloop: experiment",
    "The running A/B test, probation, or comparison with the anchor.",
    (("The test", TEST), ("Differences", DIFFERENCES), ("Arms", ARMS)),
    since="now-24h",
)
