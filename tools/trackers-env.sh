#!/usr/bin/env bash
# Makes .cache/trackers-env, for the recipes of docs/guides/experiment-trackers.md.
exec bash "$(dirname "$0")/environment.sh" trackers-env tests/docs/trackers/requirements.lock
