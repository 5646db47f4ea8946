"""Grafana's dashboards as typed code; infra/chart/dashboards/ holds the JSON that it writes."""
