"""The alerts fire on their series and are silent on quiet ones; each names metrics that exist and has a section to act by."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from infra.settings import ROOT
from serving.metrics import Metrics
from serving.metrics.loop import OF_A_LOOP

RULES = ROOT / "infra/settings/prometheus_alerts.yaml"
PAGE = ROOT / "infra/docs/operate/alerts.md"
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
OF_VLLM = {"vllm:num_requests_waiting"}
"""Names of vLLM's metrics, which a test of a real engine finds (tests/serving/engine/test_adapters.py)."""
CHAMPION = 'tabloop_slot_up{role="champion",slot="0",version="1",instance="a"}'
OF_WEB = CHAMPION.replace("{", '{project="web",')
BACKUP = "tabloop_backup_timestamp_seconds"
SERVES = {CHAMPION: "1+0x200", BACKUP: "0+0x200"}
"""Without them other alerts fire too."""
REFUSED, SERVED = 'tabloop_refused_total{status="503"}', 'tabloop_completions_total{arm="champion"}'
BUCKETS = [f'tabloop_first_token_seconds_bucket{{le="{bound}"}}' for bound in ("0.5", "1.0", "2.5", "+Inf")]
WAITING = 'vllm:num_requests_waiting{instance="e"}'
LOOP = 'tabloop_loop_ok{{sign="{}"}}'
DAY = 86_400
SEALED, LOOKED = "tabloop_cycle_sealed_timestamp_seconds", 'tabloop_flow_seconds{flow="experiment"}'
COMPACTED = 'tabloop_flow_ended_well_timestamp_seconds{flow="compaction"}'
LEFT = 'tabloop_left_spool_seen_timestamp_seconds{spool="tabloop-app-4-0a1b2c3d"}'
CERTIFICATE = 'tabloop_certificate_expires_timestamp_seconds{server="registry"}'
TOKEN = 'tabloop_token_expires_timestamp_seconds{server="slot-1"}'
SERIES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "NoEngineForTheChampion": ({CHAMPION: "1+0x5 0+0x195"}, SERVES),
    "NoEngineForAProject": ({OF_WEB: "0+0x200"}, {OF_WEB: "1+0x200"}),
    "RequestsFail": ({REFUSED: "0+10x200", SERVED: "0+100x200"}, {REFUSED: "0+1x200", SERVED: "0+100x200"}),
    "RequestsFailSlowly": ({REFUSED: "0+5x200", SERVED: "0+100x200"}, {REFUSED: "0+2x200", SERVED: "0+100x200"}),
    "FirstTokenSlow": (
        dict(zip(BUCKETS, ("0+60x200", "0+80x200", "0+100x200", "0+100x200"), strict=True)),
        dict(zip(BUCKETS, ("0+99x200", "0+100x200", "0+100x200", "0+100x200"), strict=True)),
    ),
    "FirstTokenOftenSlow": (
        dict(zip(BUCKETS, ("0+80x200", "0+90x200", "0+100x200", "0+100x200"), strict=True)),
        dict(zip(BUCKETS, ("0+99x200", "0+100x200", "0+100x200", "0+100x200"), strict=True)),
    ),
    "RequestsWaitForTheEngine": (
        {'vllm:num_requests_waiting{instance="e"}': "20+0x200"},
        {"vllm:num_requests_waiting{}": "2+0x200"},
    ),
    "SpoolOld": ({"tabloop_spool_oldest_seconds": "0+60x200"}, {"tabloop_spool_oldest_seconds": "20+0x200"}),
    "SpoolFilling": (
        {"tabloop_spool_bytes": "90+0x200", "tabloop_spool_limit_bytes": "100+0x200"},
        {"tabloop_spool_bytes": "70+0x200", "tabloop_spool_limit_bytes": "100+0x200"},
    ),
    "SpoolLeft": ({LEFT: "-2000+0x200"}, {LEFT: "0+60x200"}),
    "EventsSetAside": ({"tabloop_spool_set_aside": "1+0x200"}, {"tabloop_spool_set_aside": "0+0x200"}),
    "CompletionsUnrecorded": ({"tabloop_unrecorded_total": "0+1x200"}, {"tabloop_unrecorded_total": "7+0x200"}),
    "FeedbackSilent": (
        {SERVED: "0+10x200", 'tabloop_feedback_total{outcome="accepted"}': "4+0x200"},
        {SERVED: "0+10x200", 'tabloop_feedback_total{outcome="accepted"}': "0+1x200"},
    ),
    "WatchSilent": ({LOOP.format("watch"): "0+0x200"}, {LOOP.format("watch"): "1+0x200"}),
    "CycleFails": ({LOOP.format("cycle"): "0+0x200"}, {LOOP.format("cycle"): "1+0x200"}),
    "NoCycle": ({SEALED: f"-{15 * DAY}+0x200"}, {SEALED: f"-{13 * DAY}+0x200"}),
    "GpusAwaited": ({"tabloop_gpus_awaited_seconds": "0+60x200"}, {"tabloop_gpus_awaited_seconds": "0+10x200"}),
    "LookSlow": ({LOOKED: "25+0x200"}, {LOOKED: "3+0x200"}),
    "CompactionBehind": ({COMPACTED: f"-{DAY}+0x200"}, {COMPACTED: "0+60x200"}),
    "LoopUnread": ({'tabloop_loop_unread{part="looks"}': "1+0x200"}, {'tabloop_loop_unread{part="looks"}': "0+0x200"}),
    "BackupOld": ({BACKUP: f"-{3 * DAY}+0x200"}, {BACKUP: f"-{DAY}+0x200"}),
    "CertificateExpires": ({CERTIFICATE: f"{13 * DAY}+0x200"}, {CERTIFICATE: f"{16 * DAY}+0x200"}),
    "TokenExpires": ({TOKEN: f"{13 * DAY}+0x200"}, {TOKEN: f"{16 * DAY}+0x200"}),
    "PrefectSlow": ({LOOP.format("prefect"): "0+0x200"}, {LOOP.format("prefect"): "1+0x200"}),
    "DeltasBroken": (
        {'tabloop_version_fetches_total{how="fallback"}': "0+1x200"},
        {'tabloop_version_fetches_total{how="delta"}': "0+1x200"},
    ),
    "RatesUnshared": ({"tabloop_unshared_rates_total": "0+5x200"}, {"tabloop_unshared_rates_total": "3+0x200"}),
    "TracesLost": ({"tabloop_spans_lost_total": "0+5x200"}, {"tabloop_spans_lost_total": "3+0x200"}),
    "ScrapeMissing": ({'up{job="tabloop-engines"}': "0+0x200"}, {'up{job="tabloop-engines"}': "1+0x200"}),
}
"""Series of each alert on which it fires, and on which it is silent, in promtool's notation: a value a minute."""
OF_EACH_LOOP = ("WatchSilent", "CycleFails", "NoCycle", "GpusAwaited", "LookSlow", "LoopUnread")
"""Alerts that name the project of a loop."""
MINUTES = 180
ALSO = {"RequestsFail": "RequestsFailSlowly", "FirstTokenSlow": "FirstTokenOftenSlow"}
"""What burns a budget fast burns it slowly, too."""


def exported() -> set[str]:
    """Return the names of the app's samples."""
    names = set()
    for family in Metrics().registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


def test_every_alert_names_metrics_that_exist_and_has_a_section() -> None:
    known, sections = exported() | OF_VLLM, re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    for name, rule in ALERTS.items():
        named = set(re.findall(r"\b(?:tabloop_|vllm:)\w+", rule["expr"]))
        assert named <= known, f"{name}: {named - known}"
        assert named or name == "ScrapeMissing"
        assert rule["labels"]["severity"] in ("page", "ticket") and set(rule["annotations"]) == {"summary"}
    assert sections == list(ALERTS) == list(SERIES)


def test_each_alert_of_a_loop_keeps_the_project_that_it_is_about() -> None:
    for name, rule in ALERTS.items():
        of_a_loop = {*OF_A_LOOP, "tabloop_loop_ok"}
        asked = set(re.findall(r"\btabloop_\w+", rule["expr"])) & of_a_loop
        grouped = re.findall(r"(?:min|max) by \(([\w, ]+)\)", rule["expr"])
        common = {"PrefectSlow", "CompactionBehind"}  # Prefect's server and the flow `compaction` are the same for all loops
        assert (bool(asked) and name not in common) == (name in OF_EACH_LOOP), name
        if name in OF_EACH_LOOP:
            assert grouped and all("project" in labels.split(", ") for labels in grouped), name
        promql_parser.parse(rule["expr"])


def test_each_alert_fires_on_its_series_and_no_other_does(tmp_path: Path) -> None:
    if (program := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian's package `prometheus`)")
    tests = []
    for name, (firing, quiet) in SERIES.items():
        of_project = {_in_project(one): value for one, value in firing.items()} | quiet
        cases = [(firing, True), (quiet, False), *([(of_project, True)] if name in OF_EACH_LOOP else [])]
        for series, fires in cases:
            given = {**SERVES, **series}
            expected = []
            for alert in ALERTS:
                found: list[dict[str, Any]] = []
                if fires and alert in (name, ALSO.get(name)):
                    rule = ALERTS[alert]
                    (labels,) = _labels(alert, series)
                    found = [{"exp_labels": rule["labels"] | labels, "exp_annotations": rule["annotations"]}]
                expected.append({"eval_time": f"{MINUTES}m", "alertname": alert, "exp_alerts": found})
            values = [{"series": one, "values": value} for one, value in given.items()]
            tests.append({"name": f"{name}: {fires}", "interval": "1m", "input_series": values, "alert_rule_test": expected})
    file = tmp_path / "tests.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15m", "tests": tests}))
    done = subprocess.run([program, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    checked = subprocess.run([program, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _in_project(series: str) -> str:
    """Return a series with the label of a project."""
    name, _, labels = series.rstrip("}").partition("{")
    return f'{name}{{project="web"{"," * bool(labels)}{labels}}}'


def _labels(name: str, series: dict[str, str]) -> list[dict[str, str]]:
    """Return the labels of the series that an alert has, which keeps those that its expression does not aggregate away."""
    kept = {
        "NoEngineForTheChampion": ("instance",),
        "NoEngineForAProject": ("instance",),
        "RequestsWaitForTheEngine": ("instance",),
        "SpoolLeft": ("spool",),
        "DeltasBroken": ("how",),
        "LoopUnread": ("part",),
        "CertificateExpires": ("server",),
        "TokenExpires": ("server",),
        "ScrapeMissing": ("job",),
    }.get(name, ())
    labels = dict(re.findall(r'(\w+)="([^"]*)"', next(iter(series))))
    return [{label: labels[label] for label in (*kept, *(["project"] if "project" in labels else []))}]
