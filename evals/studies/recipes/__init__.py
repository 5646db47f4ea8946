"""What a model learns from the same simulated developers by different recipes, without a server."""
