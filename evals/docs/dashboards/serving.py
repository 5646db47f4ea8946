"""The dashboard of the app: requests, times, errors against their objectives, answers, and recording."""

from evals.docs.dashboards.board import Board, Panel, Query, lines, number

FAILED = 'sum(rate(tabloop_refused_total{status=~"5.."}[1h]))'
SERVED = "sum(rate(tabloop_completions_total[1h]))"
IN_TIME = (
    'sum(rate(tabloop_first_token_seconds_bucket{le="1.0"}[1h])) / sum(rate(tabloop_first_token_seconds_bucket{le="+Inf"}[1h]))'
)
EVERY = "[$__rate_interval]"


def quantiles(metric: str, *shares: float) -> tuple[Query, ...]:
    """Return a query for each quantile of a histogram."""
    return tuple(
        Query(f"histogram_quantile({share:g}, sum by (le) (rate({metric}_bucket{EVERY})))", f"{share:.0%}") for share in shares
    )


def rate(title: str, description: str, metric: str, *labels: str, unit: str = "reqps") -> Panel:
    """Return a panel with the rate of a counter, summed by labels."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    by = f" by ({', '.join(labels)})" if labels else ""
    return lines(title, description, Query(f"sum{by} (rate({metric}{EVERY}))", legend), unit=unit)


AT_A_GLANCE = (
    number(
        "Champion's slots up",
        "Replicas whose champion takes traffic. 0: nobody gets completions.",
        'sum(tabloop_slot_up{project="",role="champion"}) or vector(0)',
    ),
    number(
        "Completions a second",
        "Of all replicas, in the last minutes.",
        f"sum(rate(tabloop_completions_total{EVERY}))",
        "reqps",
    ),
    number(
        "Budget of failures burned",
        "Requests that got a status of 500 or above, of the last hour, divided by the objective, 0.5 %. Above 1: too many; "
        "above 14.4 the alert RequestsFail pages.",
        f"(({FAILED} or vector(0)) / ({SERVED} + ({FAILED} or vector(0)))) / 0.005",
    ),
    number(
        "Budget of slow first tokens burned",
        "First tokens after more than a second, of the last hour, divided by the objective, 1 %. Above 14.4 the alert "
        "FirstTokenSlow pages.",
        f"(1 - {IN_TIME}) / 0.01",
    ),
    number("Oldest event in a spool", "Age. Above 300 s the alert SpoolOld pages.", "max(tabloop_spool_oldest_seconds)", "s"),
    number("Open connections", "Of both ports, all replicas.", "sum(tabloop_connections)"),
)
REQUESTS = (
    rate("Completions by version", "Served, by arm and version.", "tabloop_completions_total", "arm", "version"),
    rate("How completions end", "disconnected: the client left.", "tabloop_completions_total", "finish"),
    rate("Refused requests", "By status: 4xx is the client's, 5xx ours.", "tabloop_refused_total", "status"),
    lines("Time to the first token", "From arrival.", *quantiles("tabloop_first_token_seconds", 0.5, 0.95, 0.99), unit="s"),
    lines("Time to the end", "From arrival.", *quantiles("tabloop_completion_seconds", 0.5, 0.95, 0.99), unit="s"),
    rate("Tokens", "Sampled tokens a second, by version.", "tabloop_tokens_total", "version", unit="short"),
)
ANSWERS = (
    lines(
        "Shown per request",
        "Completions with text that were shown to the end, per completion, by version.",
        Query(
            f"sum by (version) (rate(tabloop_shown_total{EVERY})) / sum by (version) (rate(tabloop_completions_total{EVERY}))",
            "{{version}}",
        ),
    ),
    rate("Feedback", "Events by outcome.", "tabloop_feedback_total", "outcome"),
    rate("Feedback by editor", "A client that stops sending teaches nothing.", "tabloop_feedback_total", "client"),
    rate("Why nothing was taken", "As editors report it.", "tabloop_not_taken_total", "reason"),
)
RECORDING = (
    lines(
        "Spools", "Bytes that wait for the object store, by replica.", Query("tabloop_spool_bytes", "{{instance}}"), unit="bytes"
    ),
    lines(
        "Lost or shortened",
        "Completions served and not recorded; recorded without text; segments set aside.",
        Query("sum(increase(tabloop_unrecorded_total[1h]))", "not recorded, last hour"),
        Query("sum(increase(tabloop_texts_dropped_total[1h]))", "without text, last hour"),
        Query("sum(tabloop_spool_set_aside)", "segments set aside"),
    ),
    lines(
        "Slots",
        "1 where a slot takes traffic.",
        Query(
            "max by (project, slot, role, version) (tabloop_slot_up)", "{{project}} slot {{slot}}, {{role}}, version {{version}}"
        ),
    ),
)
SERVING = Board(
    "serving",
    "tabloop: serving",
    "What developers get: requests, times, errors against their objectives, answers, and recording.",
    (("At a glance", AT_A_GLANCE), ("Requests", REQUESTS), ("Answers", ANSWERS), ("Recording", RECORDING)),
)
