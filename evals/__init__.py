"""Model evaluation: held-out code, metrics, judges, statistics, simulated developers, the demo and the benchmarks."""
