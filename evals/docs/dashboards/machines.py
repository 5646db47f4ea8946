"""The dashboards of engines (vLLM's own metrics) and of the fleet: every replica and engine beside the others."""

from evals.docs.dashboards.board import Board, Query, bars, lines, number
from evals.docs.dashboards.serving import EVERY, quantiles, rate

REQUESTS = (
    lines("Running", "Requests that an engine samples.", Query("vllm:num_requests_running", "{{instance}}")),
    lines(
        "Waiting",
        "Requests that wait for room in the batch. Autoscaling follows them.",
        Query("vllm:num_requests_waiting", "{{instance}}"),
    ),
    lines(
        "Memory of the cache",
        "Share of the KV cache in use; full, requests wait.",
        Query("vllm:kv_cache_usage_perc", "{{instance}}"),
        unit="percentunit",
    ),
)
TIMES = (
    lines(
        "First token",
        "From the request's arrival at the engine.",
        *quantiles("vllm:time_to_first_token_seconds", 0.5, 0.99),
        unit="s",
    ),
    lines(
        "In the engine's queue",
        "Part of the time to the first token.",
        *quantiles("vllm:request_queue_time_seconds", 0.5, 0.99),
        unit="s",
    ),
    lines("Between tokens", "Median and slowest hundredth.", *quantiles("vllm:inter_token_latency_seconds", 0.5, 0.99), unit="s"),
)
WORK = (
    rate("Prompt tokens", "Tokens a second.", "vllm:prompt_tokens_total", "instance", unit="short"),
    rate("Sampled tokens", "Tokens a second.", "vllm:generation_tokens_total", "instance", unit="short"),
    lines(
        "Prompts from the cache",
        "Share of prompt tokens that were computed before: higher where a developer's requests reach the same engine.",
        Query(f"sum(rate(vllm:prefix_cache_hits_total{EVERY})) / sum(rate(vllm:prefix_cache_queries_total{EVERY}))"),
        unit="percentunit",
    ),
    rate(
        "Preempted requests",
        "For want of cache memory; each is computed again.",
        "vllm:num_preemptions_total",
        "instance",
        unit="short",
    ),
    lines(
        "Versions",
        "1 for each version that an engine samples with.",
        Query("tabloop_engine_version", "{{instance}}, version {{version}}"),
    ),
)
ENGINES = Board(
    "engines",
    "tabloop: engines",
    "vLLM by its own metrics, which it counts with serving.engine_arguments.disable_log_stats = false.",
    (("Requests", REQUESTS), ("Times", TIMES), ("Work", WORK)),
)
PROCESSES = (
    number("Replicas that answer", "Of those that Prometheus scrapes.", 'sum(up{job="tabloop"})'),
    number("Engines that answer", "Of those that Prometheus scrapes.", 'sum(up{job="tabloop-engines"})'),
    number(
        "Left on disks",
        "Bytes of events in spools of replicas that are gone.",
        "sum(max by (spool) (tabloop_left_spool_bytes)) or vector(0)",
        "bytes",
    ),
    number("Last backup", "Time since it began.", "time() - max(tabloop_backup_timestamp_seconds)", "s"),
    number(
        "Certificate that expires first",
        "Time left, of the servers that the app asks over TLS; - without one.",
        "(min(tabloop_certificate_expires_timestamp_seconds) - time()) or vector(-1)",
        "s",
    ),
    number(
        "Token that expires first",
        "Time left, of those that the app sends to other servers; - without one.",
        "(min(tabloop_token_expires_timestamp_seconds) - time()) or vector(-1)",
        "s",
    ),
)
REPLICAS = (
    rate("Completions", "By replica.", "tabloop_completions_total", "instance"),
    lines("Connections", "By replica.", Query("tabloop_connections", "{{instance}}")),
    rate(
        "Closed connections",
        "By reason: clients that were slow or too many.",
        "tabloop_closed_connections_total",
        "reason",
        unit="short",
    ),
    lines("Oldest event in the spool", "By replica.", Query("tabloop_spool_oldest_seconds", "{{instance}}"), unit="s"),
    lines(
        "Spool in use",
        "Share of its limit, by replica.",
        Query("tabloop_spool_bytes / tabloop_spool_limit_bytes", "{{instance}}"),
        unit="percentunit",
    ),
    lines(
        "On its own",
        "Requests whose rate a replica counted alone, and spans that no endpoint took, in the last hour.",
        Query("sum by (instance) (increase(tabloop_unshared_rates_total[1h]))", "{{instance}}: rates"),
        Query("sum by (instance) (increase(tabloop_spans_lost_total[1h]))", "{{instance}}: spans"),
    ),
)
VERSIONS = (
    bars(
        "Versions served",
        "Replicas by the champion's version: more than one while a version travels.",
        Query('count by (version) (tabloop_slot_up{project="",role="champion"} == 1)', "version {{version}}"),
    ),
    lines(
        "Versions loaded",
        "Into a slot, in the last hour.",
        Query("sum by (slot) (increase(tabloop_swaps_total[1h]))", "slot {{slot}}"),
    ),
    lines(
        "Versions fetched",
        "In the last hour: fallback is a broken delta.",
        Query("sum by (how) (increase(tabloop_version_fetches_total[1h]))", "{{how}}"),
    ),
    lines("Requests in engines", "By engine.", Query("tabloop_engine_running_requests", "{{instance}}")),
)
FLEET = Board(
    "fleet",
    "tabloop: fleet",
    "Every replica and engine beside the others.",
    (("Processes", PROCESSES), ("Replicas", REPLICAS), ("Versions and engines", VERSIONS)),
)
