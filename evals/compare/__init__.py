"""Several models at the same positions.

    inputs.py      the checkpoint or evaluation set that a name means
    comparison.py  means, paired differences, verdicts and examples of all models
    report.py      the comparison as text and HTML (report.html); mlflow_run.py as a run in MLflow
    gains.py       gains with the same users, for the demo and the studies

The gate (tasks/evaluation/gate/verdict.py) judges by the same measures and differences.
"""
