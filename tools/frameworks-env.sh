#!/usr/bin/env bash
# Makes .cache/frameworks-env, for the examples of examples/frameworks.
exec bash "$(dirname "$0")/environment.sh" frameworks-env examples/frameworks/requirements.lock
