"""Check a cycle's samples and its batch with Great Expectations.

The suites are data: expectations.json checks the samples, a row each; expectations_batch.json checks the batch, one row, with
bounds as parameters (tasks/validation/batch.py). Severity `warning` quarantines the row, `critical` stops the cycle. Great
Expectations is imported inside the functions, since the import takes seconds of CPU.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.validation.batch import BatchStats, Bounds, as_row

if TYPE_CHECKING:
    import pandas as pd

SUITE = Path(__file__).with_name("expectations.json")
BATCH_SUITE = Path(__file__).with_name("expectations_batch.json")
ROW = "completion_id"
AGAIN = "`prefect deployment run cycle/cycle`"
SHOWN_ROWS = 3
"""Failing rows that an error names."""


class BatchRefused(ValueError):
    """The batch failed validation, and no cycle may train on it."""


MAX_QUARANTINED = 0.2
"""Maximum share of labelled samples that may fail validation; beyond it the cycle stops."""


@dataclass(frozen=True)
class Check:
    """An expectation and its result, for people."""

    suite: str
    """samples or batch."""
    name: str
    field: str
    found: str
    """The figure of a batch; of samples, the rows that fail, with some of their ids."""
    expected: str
    passed: bool
    then: str
    """What its failure does."""
    why: str
    """Why it is checked, and its setting; empty where the suite does not say."""


@dataclass(frozen=True)
class Validation:
    """The result of a validation."""

    rows: int
    expectations: int
    quarantined: dict[str, str]
    """Completion id to the name of the first expectation that it fails."""
    refused: tuple[str, ...]
    """Messages of the batch's failed expectations."""
    checks: tuple[Check, ...] = ()
    """Every expectation with its result, in the order of the suites."""

    def check(self, evidence: Sequence[str] = (), max_quarantined: float = MAX_QUARANTINED) -> None:
        """Raise if the batch may not be trained on; `evidence` are the URIs of its rows and pages.

        Raises:
            BatchRefused: a critical expectation failed, or too many rows did.
        """
        reasons = list(self.refused)
        if len(self.quarantined) > max_quarantined * self.rows:
            names = sorted(set(self.quarantined.values()))
            reasons.append(
                f"{len(self.quarantined)} of {self.rows} rows failed ({', '.join(names)}); at most {max_quarantined:.0%} may"
            )
        if reasons:
            raise BatchRefused(
                "validation: " + "; ".join(reasons) + ". Nothing was trained, and the labels wait for the next cycle. "
                f"Rows and pages: {', '.join(evidence) or 'none were written'}. Fix the cause, or change the setting where one "
                f"is named, then {AGAIN}"
            )


COLUMNS = (
    *("completion_id", "user", "policy_version", "outcome", "prompt_tokens", "tokens", "logprobs", "logprob_lowest"),
    *("logprob_highest", "temperature", "shown_characters", "accepted_characters", "kept_characters", "targets"),
)
"""`targets`: sampled tokens, or characters of the settled text where nobody judged the sample and it has no sampled tokens."""


def frame(samples: pl.DataFrame) -> "pd.DataFrame":
    """Return one row per sample, with the columns that the suite checks."""
    silent = (pl.col("outcome").cast(pl.String) == "unjudged") & (pl.col("tokens") == 0)
    targets = pl.when(silent).then(pl.col("settled").str.len_chars().fill_null(0)).otherwise("tokens")
    rows = samples.rename({"id": ROW}).with_columns(pl.col("outcome").cast(pl.String), targets=targets)
    return rows.select(COLUMNS).to_pandas()


def validate(samples: pl.DataFrame, stats: BatchStats, bounds: Bounds) -> Validation:
    """Check the samples and the batch against their suites."""
    import great_expectations as gx
    import pandas as pd
    from great_expectations.core.expectation_suite import ExpectationSuite
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    source = context.data_sources.add_pandas("cycle")

    def run(path: Path, data: "pd.DataFrame", index: list[str], parameters: Bounds) -> Any:
        loaded = ExpectationSuite(**json.loads(path.read_text()))
        whole = source.add_dataframe_asset(loaded.name).add_batch_definition_whole_dataframe("all")
        return whole.get_batch({"dataframe": data}).validate(
            loaded,
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": index},
            expectation_parameters=parameters,
        )

    of_rows = run(SUITE, frame(samples), [ROW], {})
    of_batch = run(BATCH_SUITE, pd.DataFrame(as_row(stats)), [], bounds)
    rows, refused = read_results(of_rows.results)
    refused += read_results(of_batch.results, bounds)[1]
    figures = {name: values[0] for name, values in as_row(stats).items()}
    checks = [check_of("samples", result, {}, {}) for result in of_rows.results]
    checks += [check_of("batch", result, bounds, figures) for result in of_batch.results]
    return Validation(samples.height, len(checks), rows, tuple(refused), tuple(checks))


def check_of(suite: str, result: Any, bounds: Mapping[str, float], figures: Mapping[str, float]) -> Check:
    """Return the result of an expectation in words; `figures` are the batch's, by name."""
    config, meta = result.expectation_config, result.expectation_config.meta or {}
    field = config.kwargs.get("column") or " and ".join(config.kwargs[k] for k in ("column_A", "column_B") if k in config.kwargs)
    rows = [entry[ROW] for entry in result.result.get("unexpected_index_list") or [] if isinstance(entry, dict)]
    some = f": {', '.join(rows[:SHOWN_ROWS])}{', ...' if len(rows) > SHOWN_ROWS else ''}" if rows else ""
    found = _number(figures[field]) if field in figures else f"{len(rows)} rows fail{some}" if suite == "samples" else ""
    critical = str(getattr(config.severity, "value", config.severity)) == "critical"
    return Check(
        suite=suite,
        name=meta.get("name", config.type),
        field=field or "all columns",
        found=found,
        expected=expected(config, bounds),
        passed=bool(result.success),
        then="stops the cycle" if critical else "rows are quarantined",
        why="; ".join(meta[key] for key in ("why", "setting") if key in meta),
    )


def read_results(results: Sequence[Any], bounds: Mapping[str, float] | None = None) -> tuple[dict[str, str], list[str]]:
    """Return the rows to quarantine, with reasons, and the messages of the batch's failures, in the suite's order."""
    quarantined: dict[str, str] = {}
    refused = []
    for result in results:
        name, severity = result.expectation_config.type, result.expectation_config.severity
        if result.success:
            continue
        if (result.exception_info or {}).get("raised_exception"):
            refused.append(f"{name}: {result.exception_info.get('exception_message')}")
            continue
        failing = [entry[ROW] for entry in result.result.get("unexpected_index_list") or [] if isinstance(entry, dict)]
        label = (result.expectation_config.meta or {}).get("name", name)
        if str(getattr(severity, "value", severity)) == "critical" or not failing:
            refused.append(summary(label, result, failing, bounds or {}))
        else:
            for row in failing:
                quarantined.setdefault(row, label)
    return quarantined, refused


def summary(label: str, result: Any, failing: Sequence[str], bounds: Mapping[str, float]) -> str:
    """Return the message of a failed expectation: its name, the field, the value, the expected value, why, and the setting."""
    config, details = result.expectation_config, result.result
    kwargs, meta = config.kwargs, config.meta or {}
    value = details.get("observed_value")
    if value is None:
        values = list(details.get("partial_unexpected_list") or [])
        value = values[0] if len(values) == 1 else values[:SHOWN_ROWS]
    message = f"{label}: {kwargs.get('column', 'the table')} is {_number(value)}"
    message += f", expected {expected(config, bounds)}"
    if failing:
        rows = ", ".join(failing[:SHOWN_ROWS]) + (", ..." if len(failing) > SHOWN_ROWS else "")
        message += f" (failed, {len(failing)} rows: {rows})"
    why = [meta[key] for key in ("why", "setting") if key in meta]
    return message + (f" [{'; '.join(why)}]" if why else "")


def expected(config: Any, bounds: Mapping[str, float]) -> str:
    """Return what an expectation asks for, in words."""
    kwargs = config.kwargs
    limits = [
        f"{words} {_number(bounds.get(limit.get('$PARAMETER', ''), limit) if isinstance(limit, dict) else limit)}"
        for words, limit in (("at least", kwargs.get("min_value")), ("at most", kwargs.get("max_value")))
        if limit is not None
    ]
    others = [f"{name} {kwargs[name]}" for name in ("regex", "value_set", "mostly") if kwargs.get(name) is not None]
    return " and ".join([*limits, *others]) or config.type.removeprefix("expect_").replace("_", " ")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
