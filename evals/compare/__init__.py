"""Several models at the same positions.

    inputs.py      the checkpoint or evaluation set that a name means
    comparison.py  means, paired differences, verdicts and examples of all models
    report.py      the comparison as text and HTML (report.html); mlflow_run.py as a run in MLflow
    gains.py       gains with the same users, for the demo and the studies
    checkpoint.py  the scores of one checkpoint (`tabloop evaluate`); in_process.py completes with transformers
    sets.py        the sets that the settings name (`tabloop sets`)

tasks/evaluation scores the places (scoring.py); its gate (gate/verdict.py) decides by the same measures and differences.
"""
