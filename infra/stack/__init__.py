"""The local stack: every part on this machine, supervised by supervisord. See infra/docs/operations.md."""
