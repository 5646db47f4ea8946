"""The state of the app: for supervisors, for Prometheus, and as a page for people."""
