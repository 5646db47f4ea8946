"""One engine: vLLM behind the small protocol of serving/protocol.py, a process for each slot."""
