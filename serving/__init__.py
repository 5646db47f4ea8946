"""The always-on app that editors talk to: completions, feedback, arms, engines, the event recorder."""
