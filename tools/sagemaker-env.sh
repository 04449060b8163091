#!/usr/bin/env bash
# Makes .cache/sagemaker-env, with what AWS runs in the containers of SageMaker: its training toolkit, and the drivers
# of the third version of its SDK. Both without the libraries for hosting and for the control plane, which training
# does not import.
locks=tests/engines/sagemaker/twin/toolkit
exec bash "$(dirname "$0")/environment.sh" sagemaker-env "$locks/requirements.lock" "$locks/bare.lock"
