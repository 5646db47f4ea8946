"""Benchmarks: `python -m evals.bench [NAME...]` runs modules with `run(settings) -> figures`."""
