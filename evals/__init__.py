"""How a model is measured: held-out code, metrics, judges, statistics, simulated developers."""
