#!/usr/bin/env bash
# tests/device/run.sh
#
# What needs a GPU to be seen, on one GPU in under 4 minutes (device_test.cc says what):
#   tests/device/run.sh [BUILD_DIR]
# BUILD_DIR is a build by the cuda preset (build/cuda), made first where its device_test is missing; building it
# elsewhere beforehand saves the device's time. Exits with 0 where all is well, 2 where there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${1:-build/cuda}
limit_s=180  # Of the tests themselves.

if ! gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null) || [[ -z $gpus ]]; then
  echo "tests/device/run.sh: this machine has no NVIDIA GPU that nvidia-smi can see, so nothing was tested." >&2
  exit 2
fi
echo "GPU and driver: ${gpus%%$'\n'*}"

if [[ ! -x $build/tests/device_test ]]; then
  cmake --preset cuda -B "$build"
  cmake --build "$build" -j "$(nproc)" --target device_test
fi

export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
# Streams get hardware queues of their own, so that one never waits behind another.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-8}
exec timeout "$limit_s" "$build/tests/device_test"
