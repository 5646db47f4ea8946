"""A report as a demo of two cycles leaves it."""

from evals.demo.record import (
    Baselines,
    Changes,
    Comparison,
    CycleRow,
    Difference,
    Example,
    ExperimentRow,
    Exploration,
    GroundRow,
    RateAt,
    Report,
    Step,
)
from infra.pages.charts import ConfidenceSequence, Point
from infra.records import MeasuredGroup, Measures, Rate, Verdict
from tasks.showing.reliability import Bin, Reliability

CALIBRATION = Reliability(error=0.0123, bins=[Bin(count=7, chance=0.25, kept=0.3), Bin(count=90, chance=0.72, kept=0.7)])
PREFIX = "class Parser:\n    def __init__(self, text: str, limit: int = 80) -> None:  # <read> once\n        self."
GAIN = Example(
    kind="gain",
    file="package/parser.py",
    right=21,
    prefix=PREFIX,
    truth="text = text.rstrip()\n        self.limit = limit",
    base="limit",
    base_accepted=False,
    champion="text = text.rstrip()",
    champion_accepted=True,
)
LOSS = Example(
    kind="loss",
    file="package/<b>.py",
    right=12,
    prefix="def total(values):\n    return ",
    truth="sum(values) / 2 if values else None",
    base="sum(values)",
    base_accepted=True,
    champion="",
    champion_accepted=False,
)


def rate(value: float, n: int = 2500) -> Rate:
    return Rate(rate=value, low=value - 0.02, high=value + 0.02, n=n)


def baselines(base: float, champion: float) -> Baselines:
    gain = Difference(estimate=champion - base, low=champion - base - 0.01, high=champion - base + 0.01)
    return Baselines(
        base_best=RateAt(**rate(base).model_dump(), temperature=0.1),
        base_served=rate(base - 0.01),
        champion=rate(champion),
        difference=gain,
        champion_all=rate(champion - 0.01),
        learning=gain,
        showing=gain,
    )


def ground(base: float, champion: float) -> GroundRow:
    kept, saved = baselines(4 * base, 4 * champion), baselines(60 * base, 60 * champion)
    return GroundRow(**baselines(base, champion).model_dump(), kept_characters=kept, time_saved=saved)


def cycle(number: int, verdict: str) -> CycleRow:
    sums = Measures(
        requests=6400, shown=5000, accepted=1200, kept_characters=9000, completed_characters=800, typed_characters=9000
    )
    buckets = {"trained": 3100, "unlabelled": 1900, "waiting": 900, "over_share": 350, "quarantined": 150, "stale": 0}
    return CycleRow.model_validate(
        {
            **{"cycle": f"cycle-{number:06d}", "parent": "1", "version": str(number + 1), "samples": 3100, "requests": 6400},
            **{
                "buckets": buckets,
                "quarantined": {"secret": 150},
                "clip_fraction": 0.01,
                "kl": 0.002,
                "logprob_difference": 1e-6,
            },
            "measures": (MeasuredGroup(by="all", name="", measures=sums), MeasuredGroup(by="language", name="py", measures=sums)),
            **{
                "mean_reward": 0.1 * number if number == 2 else None,
                "judge": 5.0,
                "verdict": verdict,
                "reason": "the gain in acceptance is sure",
            },
            **{"estimate": 0.02, "low": 0.01, "high": 0.05, "calibration": CALIBRATION},
            "steps": [
                Step(
                    reward=0.1 * number + 0.01 * step if number == 2 else None,
                    settled_loss=2.0 - 0.01 * step,
                    gradient_norm=1.0,
                    learning_rate=1e-5,
                )
                for step in range(12)
            ],
        }
    )


def experiment(challenger: str, verdict: str) -> ExperimentRow:
    def sequence(metric: str) -> ConfidenceSequence:
        return ConfidenceSequence(
            title=f"{metric} per request (more is better), 99.83 % confidence sequence",
            description="Difference, challenger minus champion. Zero is no difference.",
            points=[Point(20.0 * look, 0.02, 0.02 - 0.6 / look, 0.02 + 0.6 / look) for look in range(1, 60)],
            x_label="requests on the smaller arm",
            end=1500,
            margins=[-0.024],
        )

    return ExperimentRow.model_validate(
        {
            **{"experiment": f"e{challenger}", "champion": "1", "challenger": challenger, "verdict": verdict},
            "reason": "acceptance per request is surely better: +0.0201 [+0.0011, +0.0410]",
            "sequences": [sequence("accepted"), sequence("kept characters")],
            "result": Verdict.model_validate(
                {
                    **{"verdict": verdict, "reason": "sure", "requests": {"champion": 1500, "challenger": 1510}},
                    **{"users": {"champion": 60, "challenger": 61}},
                    "acceptance": {"champion": rate(0.2), "challenger": rate(0.22)},
                }
            ),
        }
    )


def report() -> Report:
    """Return the report."""
    gain = Difference(estimate=0.04, low=0.03, high=0.05)
    same = Comparison(base=rate(0.2), champion=rate(0.24), difference=gain)
    return Report(
        **{
            "seed": 0,
            "developers": "people",
            "rates": "404ba4b02814",
            "seconds": 612.0,
            "base_version": "1",
            "champion_version": "3",
            "cycles": 2,
            "promotions": 1,
            "rejections": 1,
        },
        **{"judge": "reference", "acceptance": same, "acceptance_of_shown": same, "accepted_characters_per_request": same},
        shown=same,
        grounds={"later": ground(0.2, 0.24), "new": ground(0.18, 0.185)},
        exploration=Exploration(share=0.05, exploring=rate(0.15), others=rate(0.2), difference=gain, cost=0.002, taught=300),
        calibration=CALIBRATION,
        champion_calibration=CALIBRATION,
        history=[cycle(1, "reject"), cycle(2, "promote")],
        experiments=[experiment("2", "reject"), experiment("3", "promote")],
        changes=Changes(gains=140, losses=61, examples=[GAIN, LOSS]),
        addresses={"MLflow": "http://127.0.0.1:5000", "Prefect": "http://127.0.0.1:4200"},
    )
