"""Prefect flows: order only."""
