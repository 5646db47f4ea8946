"""Reports of an estimate: its line in the log, its metrics in MLflow, its page."""

from infra.pages.charts import standalone
from infra.pages.markdown import table
from tasks.showing.fit import SURE, FittedEstimate, Unfitted
from tasks.showing.reliability import Reliability, diagram


def summary(fitted: FittedEstimate | Unfitted) -> str:
    """Return an estimate in one line."""
    if isinstance(fitted, Unfitted):
        return f"none: {fitted.reason}"
    gain, error = fitted.cut_gain
    cuts = f"{'texts are cut' if fitted.estimate.cuts else 'no text is cut'}: cutting keeps {gain:+.3f} ± {SURE * error:.3f}"
    return (
        f"fitted on {fitted.completions} completions, calibration error {fitted.reliability.error:.4f} on "
        f"{fitted.reliability.count} later beginnings; {cuts} characters a completion"
    )


def metrics(fitted: FittedEstimate | Unfitted) -> dict[str, float]:
    """Return an estimate's metrics by name; none without an estimate."""
    if isinstance(fitted, Unfitted):
        return {}
    errors = {"": fitted.reliability, "chosen_": fitted.chosen, "served_": fitted.served}
    figures = {f"showing.{name}calibration_error": part.error for name, part in errors.items() if part}
    counts = {"showing.completions": fitted.completions, "showing.beginnings": fitted.reliability.count}
    return figures | {name: float(count) for name, count in counts.items()} | {"showing.cut_gain": fitted.cut_gain[0]}


def page(fitted: FittedEstimate | Unfitted) -> str:
    """Return an estimate and its reliability diagram in Markdown."""
    lines = ["## The keep estimate", "", f"{summary(fitted)}."]
    if isinstance(fitted, FittedEstimate):
        lines += ["", _table(fitted.reliability)]
        parts = {"the beginnings that look best": fitted.chosen, "the chances by which serving decided": fitted.served}
        for name, part in parts.items():
            if part:
                lines += ["", f"Of {name}: calibration error {part.error:.4f}.", "", _table(part)]
    return "\n".join(lines)


def chart(fitted: FittedEstimate) -> str:
    """Return an estimate's reliability diagram as an SVG image of its own."""
    found = fitted.reliability
    return standalone(diagram([(bin.count, bin.chance, bin.kept) for bin in found.bins], found.error))


def _table(reliability: Reliability) -> str:
    rows = [(bin.count, f"{bin.chance:.3f}", f"{bin.kept:.3f}") for bin in reliability.bins]
    return table(("beginnings", "mean chance", "share kept"), rows)
