"""Benchmarks: `tabloop bench [NAME...]` runs modules with `run(settings) -> figures`."""
