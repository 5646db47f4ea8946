"""The local stack: every part on this machine, kept running by supervisord. See infra/README.md."""
