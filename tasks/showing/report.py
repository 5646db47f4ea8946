"""What people see of an estimate: its line in the log, its metrics in MLflow, its page."""

from tasks.showing.fit import FittedEstimate, Unfitted
from tasks.showing.reliability import Reliability


def summary(fitted: FittedEstimate | Unfitted) -> str:
    """Return an estimate in one line."""
    if isinstance(fitted, Unfitted):
        return f"none: {fitted.reason}"
    return (
        f"fitted on {fitted.completions} completions, calibration error {fitted.reliability.error:.4f} on "
        f"{fitted.reliability.count} later beginnings"
    )


def metrics(fitted: FittedEstimate | Unfitted) -> dict[str, float]:
    """Return an estimate's metrics by name; none without an estimate."""
    if isinstance(fitted, Unfitted):
        return {}
    figures = {
        "showing.completions": float(fitted.completions),
        "showing.beginnings": float(fitted.reliability.count),
        "showing.calibration_error": fitted.reliability.error,
    }
    return figures | ({"showing.served_calibration_error": fitted.served.error} if fitted.served else {})


def page(fitted: FittedEstimate | Unfitted) -> str:
    """Return an estimate and its reliability diagram in Markdown."""
    lines = ["## The estimate of what is kept", "", f"{summary(fitted)}."]
    if isinstance(fitted, FittedEstimate):
        lines += ["", *_table(fitted.reliability)]
        if fitted.served:
            lines += ["", f"Of the chances by which serving decided: calibration error {fitted.served.error:.4f}.", ""]
            lines += _table(fitted.served)
    return "\n".join(lines)


def _table(reliability: Reliability) -> list[str]:
    rows = [f"| {bin.count} | {bin.chance:.3f} | {bin.kept:.3f} |" for bin in reliability.bins]
    return ["| beginnings | mean chance | share kept |", "| --- | --- | --- |", *rows]
