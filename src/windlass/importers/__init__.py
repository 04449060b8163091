"""Converts manifests of other systems into job files, and lists the fields without equivalent. Pure.

    text ── documents ──▶ Source ── kubeflow, jobset, torchx, sagemaker, … ──▶ Draft ── convert ──▶ Imported
                             └─ each value is read or reported; `Source.rest` finds those that are neither

Pod templates are read by `pods.py`, `node_affinity.py` and `storage.py`, for all kinds; commands of containers by
`container_command.py` and `shell.py`, with the parsers of torchrun and mpirun in `windlass.spec`.
"""
