"""Failures of the judge: whether they are an error of the evaluation, or make it undecided.

A judge that does not answer is an error: the candidate has no verdict, and the next run of the cycle asks again. A judge that
answers without a score at too many places would do so again: the evaluation is undecided, which never passes.
"""

from collections.abc import Mapping

from tasks.evaluation.judge.calibration import Calibration

MAX_JUDGE_FAILURES = 0.1
"""Maximum share of places at which the judge may fail."""


class EvaluationBroken(RuntimeError):
    """Scores are missing, so the candidate has no verdict; the cycle can be resumed."""


def unheard(calibration: Calibration, failures: Mapping[str, float], champion: str, most: float = MAX_JUDGE_FAILURES) -> str:
    """Return why the judge's failures leave the evaluation undecided; "" if there are few enough.

    Args:
        failures: share of the places that the judge could not score, by model.
        champion: name of the model whose texts the judge should be able to score.
        most: largest share of failures.

    Raises:
        EvaluationBroken: it failed at too many places, mostly because it did not answer.
    """
    asked = calibration.failures + calibration.places
    name, share, away = "calibration", calibration.failures / max(asked, 1), 2 * calibration.away > calibration.failures
    if share <= most and calibration.counts:
        # The judge works on other texts: if it fails only on a candidate's, these texts are the reason.
        name, share = max(failures.items(), key=lambda item: item[1])
        away = failures[champion] > most
    if share <= most:
        return ""
    allowed = f"at most {most:.1%} may fail"
    reason = f"judge {calibration.judge!r} failed on {share:.1%} of the {name} places; {allowed}"
    if away:
        raise EvaluationBroken(
            f"held-out evaluation: {reason}. There is no verdict. Check evaluate.judge; the next run of the cycle asks again "
            "where the judge failed"
        )
    return reason
