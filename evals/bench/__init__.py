"""Benchmarks: `python -m evals.bench [NAME...]`; each a module with `run(settings) -> figures`."""
