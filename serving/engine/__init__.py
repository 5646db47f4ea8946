"""The engine of one slot: vLLM in a process of its own, behind the protocol of protocol.py. Importing this loads no vLLM."""
