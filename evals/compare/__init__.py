"""Several models at the same places.

    paired.py      differences with intervals, by file
    measures.py    what is compared at each place
    scoring.py     completes and scores the places with each model
    comparison.py  means, paired differences, verdicts and examples of all models
    report.py      the comparison as text and HTML (report.html); runs.py as a run in MLflow
    models.py      which checkpoint a name means; places.py which held-out sets

The gate (tasks/evaluation/gate/verdict.py) judges by the same measures and differences.
"""
