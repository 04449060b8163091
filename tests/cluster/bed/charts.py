"""Writes a small chart with an emulated operator: a real Deployment of the test image, which idles.

A test cluster cannot pull the image of a real operator. The chart tests the installation: helm, readiness, upgrade.
"""

from __future__ import annotations

import json
from pathlib import Path

NAME = "emulated"
GROUP = "emulated.windlass.test"
DEFINITION = f"gadgets.{GROUP}"
DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: emulated-controller
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: emulated}}
  template:
    metadata:
      labels: {app: emulated}
      annotations: {chart: "{{ .Chart.Version }}", queue: "{{ .Values.queue }}"}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: controller
          image: {{ .Values.image }}
          command: ["sleep", "100000"]
"""
HOOK = """{{- if .Values.hookSeconds }}
apiVersion: batch/v1
kind: Job
metadata:
  name: emulated-hook
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
        - name: hook
          image: {{ .Values.image }}
          command: ["sleep", "{{ .Values.hookSeconds }}"]
{{- end }}
"""


def definition(*fields: str) -> dict[str, object]:
    """Returns a CustomResourceDefinition with these fields, as in the chart's folder `crds`."""
    spec = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": DEFINITION},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": "Gadget", "plural": "gadgets"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def write(folder: Path, version: str, *fields: str, deployment: str = DEPLOYMENT) -> None:
    """Writes a chart of this version, whose kind has these fields."""
    chart = folder / f"{NAME}-{version}"
    (chart / "templates").mkdir(parents=True)
    (chart / "crds").mkdir()
    (chart / "Chart.yaml").write_text(json.dumps({"apiVersion": "v2", "name": NAME, "version": version}))
    (chart / "values.yaml").write_text(json.dumps({"replicas": 1, "image": "", "queue": "", "hookSeconds": 0}))
    (chart / "templates" / "deployment.yaml").write_text(deployment)
    (chart / "templates" / "hook.yaml").write_text(HOOK)
    (chart / "crds" / "gadgets.yaml").write_text(json.dumps(definition(*fields)))
