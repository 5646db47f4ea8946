"""Great Expectations over a cycle's samples: rows that fail are quarantined, a batch that fails stops the cycle.

The suite is data, expectations.json; `severity` says which is which: warning for rows, critical for the batch. Importing Great
Expectations costs seconds of CPU, so it happens inside the function.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.records import Sample

if TYPE_CHECKING:
    import pandas as pd

SUITE = Path(__file__).with_name("expectations.json")
ROW = "completion_id"


class BatchRefused(ValueError):
    """The batch as a whole is not what a cycle may be trained on."""


@dataclass(frozen=True)
class Validation:
    """What Great Expectations said."""

    rows: int
    expectations: int
    quarantined: dict[str, str]
    """Completion id to the name of the first expectation that it fails."""
    refused: tuple[str, ...]
    """Expectations of the batch that failed, in words."""

    def check(self, max_quarantined: float) -> None:
        """Stop a cycle whose batch is not fit.

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
                "validation: " + "; ".join(reasons) + ". Nothing was trained. The rows are in the cycle's validation.json; "
                "the suite is tasks/expectations.json, the bound is collect.max_quarantined"
            )


def frame(samples: Sequence[Sample]) -> "pd.DataFrame":
    """One row a sample, the columns that the suite speaks of."""
    import pandas as pd

    return pd.DataFrame(
        {
            ROW: [s.completion_id for s in samples],
            "user": [s.user for s in samples],
            "policy_version": [s.policy_version for s in samples],
            "outcome": [s.outcome for s in samples],
            "prompt_tokens": [len(s.prompt_token_ids) for s in samples],
            "tokens": [len(s.token_ids) for s in samples],
            "logprobs": [len(s.logprobs) for s in samples],
            # An infinite or undefined log-probability becomes one that no bound lets through.
            "logprob_lowest": [min((_finite(x, -math.inf) for x in s.logprobs), default=-math.inf) for s in samples],
            "logprob_highest": [max((_finite(x, math.inf) for x in s.logprobs), default=math.inf) for s in samples],
            "temperature": [s.temperature for s in samples],
            "shown_characters": [s.shown_characters for s in samples],
            "accepted_characters": [s.accepted_characters for s in samples],
        }
    )


def _finite(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise


def validate(samples: Sequence[Sample], suite: Path = SUITE) -> Validation:
    """Check the samples against the suite."""
    import great_expectations as gx
    from great_expectations.core.expectation_suite import ExpectationSuite
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    loaded = ExpectationSuite(**json.loads(suite.read_text()))
    batch = context.data_sources.add_pandas("cycle").add_dataframe_asset("samples").add_batch_definition_whole_dataframe("all")
    data = batch.get_batch({"dataframe": frame(samples)})
    result = data.validate(loaded, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": [ROW]})
    return read_results(len(samples), result.results)


def read_results(rows: int, results: Sequence[Any]) -> Validation:
    """The rows to quarantine and what is wrong with the batch, in the suite's order."""
    quarantined: dict[str, str] = {}
    refused = []
    for found in results:
        name, severity = found.expectation_config.type, found.expectation_config.severity
        if found.success:
            continue
        if (found.exception_info or {}).get("raised_exception"):
            refused.append(f"{name}: {found.exception_info.get('exception_message')}")
            continue
        failing = [entry[ROW] for entry in found.result.get("unexpected_index_list") or []]
        label = found.expectation_config.meta.get("name", name) if found.expectation_config.meta else name
        if str(getattr(severity, "value", severity)) == "critical" or not failing:
            observed = found.result.get("observed_value")
            refused.append(
                f"{label} failed" + (f", observed {observed}" if observed is not None else f" for {len(failing)} rows")
            )
        else:
            for row in failing:
                quarantined.setdefault(row, label)
    return Validation(rows, len(results), quarantined, tuple(refused))
