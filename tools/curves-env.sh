#!/usr/bin/env bash
# Makes .cache/curves-env, with libraries that write metrics, for the tests of tests/worker/curves.
exec bash "$(dirname "$0")/environment.sh" curves-env tests/worker/curves/requirements.lock
