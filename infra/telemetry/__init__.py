"""Logs and traces of the app and the flows. Neither holds code or names of people."""
