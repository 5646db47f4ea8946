"""The step `validate` of a cycle: quarantine the rows that fail the suite."""

from dataclasses import dataclass

from prefect.logging import get_run_logger

from tasks.labels import samples
from tasks.labels.collect import Collected
from tasks.steps import pages
from tasks.steps.context import Context
from tasks.steps.naming import call_waiting
from tasks.steps.step import attempt_to_show, show_page, step
from tasks.validation import batch, drift, quarantine, suite
from tasks.validation import pages as validation_pages
from tasks.validation.quarantine import ValidationEvidence


@dataclass(frozen=True, eq=False)
class Validated:
    """A window whose failing samples are in the quarantine."""

    cycle: str
    """Id of the cycle that its samples are sealed in."""
    collected: Collected
    evidence: ValidationEvidence

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """User and project of each request."""
        return self.collected.accounting.classified.select("user", "project").rows()


@step("validate")
def validate(context: Context, collected: Collected, cycle: str) -> Validated:
    """Quarantine the rows that fail the suite. A batch that fails stops the cycle after its rows and pages are written."""
    store, settings, accounting = context.store, context.settings.collect, collected.accounting
    past = drift.earlier(store)
    stats, bounds = batch.batch_stats(accounting, collected.skew), batch.bounds(accounting.samples, past, settings)
    validation = suite.validate(accounting.samples, stats, bounds)
    failed = samples.records(store, collected.plan.partitions, accounting.samples_of(validation.quarantined))
    rows = quarantine.rows(accounting, validation.quarantined, collected.malformed, failed)
    evidence = ValidationEvidence(quarantine.write(store, cycle, rows), write_docs(context, cycle, validation))
    attempt_to_show("earlier rows and pages", lambda: quarantine.remove_replaced(store, cycle, evidence, context.now()))
    validated = Validated(cycle, collected.quarantine(validation.quarantined), evidence)
    # Before the check of the batch, so that people see what stops a cycle.
    pages.show_accounting(cycle, validated.collected.accounting)
    show_page("validation", quarantine.validation_page(store, cycle, validated.evidence, validation))
    call_waiting(validated.collected.accounting.waiting)
    validation.check([store.uri(key) for key in evidence.keys])
    get_run_logger().info("%d rows, %d quarantined; %s", validation.rows, len(validation.quarantined), stats)
    return validated


def write_docs(context: Context, cycle: str, validation: suite.Validation) -> tuple[str, ...]:
    """Write the pages of a validation; return their keys. A page that cannot be rendered stops nothing."""
    try:
        return quarantine.write_docs(context.store, cycle, validation_pages.pages(validation))
    except Exception as error:
        get_run_logger().warning("pages of the validation: %s", error)
        return ()
