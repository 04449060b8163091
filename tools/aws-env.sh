#!/usr/bin/env bash
# Makes .cache/aws-env with the emulator of AWS, and .cache/checkov-env with the checks of Terraform files: each pins
# libraries that the other and Windlass have in other versions.
locks=$(dirname "$0")/../tests/fakeaws/emulator
bash "$(dirname "$0")/environment.sh" aws-env "$locks/requirements.lock"
bash "$(dirname "$0")/environment.sh" checkov-env "$locks/checkov.lock"
