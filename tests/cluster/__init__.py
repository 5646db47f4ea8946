"""A stand-in cluster for helm and kubectl: an API server, controllers, and a node whose pods are processes of this machine.

It goes on where tests/kubernetes.py ends, whose Jobs it takes too. It shows what the chart's manifests and the documented
commands do in a cluster; node.py and controllers.py name what it leaves out.
"""
