#!/usr/bin/env bash
# examples/pretrain_gpt/train.sh
#
# Trains a GPT on the sources of Python's standard library over NPROC local processes:
#   examples/pretrain_gpt/train.sh [CONFIG] [--set key=value]...
# CONFIG defaults to configs/gpt_tiny.yaml. Variables: NPROC (4), BUILD_DIR (build/cpu). The data is prepared once, in
# data/. Without the checkout's torchrun the processes are started here, by RANK and WORLD_SIZE,
# and end with this script.
set -euo pipefail
cd "$(dirname "$0")/../.."

nproc=${NPROC:-4}
program=${BUILD_DIR:-build/cpu}/bin/pretrain_gpt
config=configs/gpt_tiny.yaml
if (($#)) && [[ $1 != -* ]]; then
  config=$1
  shift
fi
arguments=(train --config "$config" "$@")
if [[ ! -x $program ]]; then
  echo "$program is missing: build it first, for example with \`make train\`" >&2
  exit 1
fi

# A port that is free now.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

end_processes() {
  local running
  running=$(jobs -pr)
  [[ -z $running ]] || kill $running
  wait
}

start_processes() {
  local rank pid pids=() status=0
  trap end_processes EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  export WORLD_SIZE=$nproc LOCAL_WORLD_SIZE=$nproc MASTER_ADDR=127.0.0.1 MASTER_PORT
  MASTER_PORT=$(free_port)
  for ((rank = 0; rank < nproc; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank "$program" "${arguments[@]}" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
  done
  return $status
}

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
examples/pretrain_gpt/prepare_data.sh
if [[ -x .venv/bin/torchrun ]]; then
  exec .venv/bin/torchrun --nproc-per-node "$nproc" --master-port "$(free_port)" --no-python \
    "$program" "${arguments[@]}"
fi
start_processes
