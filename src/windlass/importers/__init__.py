"""Converts manifests of other systems into job files, and lists the fields that have no equivalent.

    text ── documents ──▶ ImportSource ── kubeflow, jobset, torchx, sagemaker, … ──▶ Draft ── convert ──▶ Imported
                            └─ each value is read or reported; `ImportSource.rest` finds those that are neither

`pods.py`, `scheduling.py`, `storage.py` and `pod_fields.py` read the pod templates of all kinds: common fields become
fields of the job, the others a patch of its pods, as far as `spec.pod_patch` allows. `container_command.py` and
`shell.py` parse the commands of containers with the parsers of torchrun and mpirun in `windlass.spec`.
"""
