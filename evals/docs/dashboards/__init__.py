"""Grafana's dashboards as typed code; infra/dashboards/ holds the JSON that it writes."""
