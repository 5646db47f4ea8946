"""Each quarantine reason has a meaning, in the code and in the docs."""

import json
import re

from infra.settings import ROOT
from infra.storage.events.read import MALFORMED
from tasks.labels.accounting import quarantine_conditions
from tasks.labels.explain import REASONS, Fate
from tasks.validation.suite import SUITE


def test_each_reason_of_the_accounting_and_of_the_row_expectations_has_a_meaning() -> None:
    expectations = json.loads(SUITE.read_text())["expectations"]
    of_rows = [expectation["meta"]["name"] for expectation in expectations if expectation["severity"] == "warning"]
    assert list(REASONS) == [*quarantine_conditions(), MALFORMED, *of_rows]


def test_the_docs_have_the_same_table() -> None:
    page = (ROOT / "infra/docs/how/labels.md").read_text()
    table = page.partition("| quarantine reason | meaning |\n| --- | --- |\n")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)) == REASONS


def test_a_quarantined_request_is_explained_with_the_meaning_of_its_reason() -> None:
    assert str(Fate("cycle-000001", "quarantined", "no_logprobs")) == (
        f"cycle-000001: quarantined (no_logprobs): not fit for training: {REASONS['no_logprobs']}; the cycle has not ended"
    )
    assert "a reason of another version of this code" in str(Fate("cycle-000001", "quarantined", "dropped_since"))
