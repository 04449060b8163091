#!/usr/bin/env bash
# Makes .cache/inference-env and .cache/inference-torch-env, with AWS's code that calls the functions of an inference.py,
# for tests/serving/test_aws.py. Two environments, because the second package has a copy of the first.
set -euo pipefail
make_env() { bash "$(dirname "$0")/environment.sh" "$1" tests/serving/requirements.lock "tests/serving/$2.lock"; }
make_env inference-env sagemaker-inference
make_env inference-torch-env sagemaker-pytorch-inference
