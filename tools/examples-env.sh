#!/usr/bin/env bash
# Makes .cache/examples-env, for the examples that need large libraries.
exec bash "$(dirname "$0")/environment.sh" examples-env examples/requirements.lock
