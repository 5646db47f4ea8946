"""An update as a Job of Kubernetes: the flow's side. The pods' side is tasks/trainer/pod.py."""
