#!/usr/bin/env bash
# examples/multi_node/train.sh
#
# Trains on several machines. Start it on every one of them, with the same arguments and a NODE_RANK of its own:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 GLOO_SOCKET_IFNAME=eth0 \
#     examples/multi_node/train.sh CONFIG [--set key=value]...
# Checkout, build, data_path and output_dir are at the same place everywhere (a shared file system, or copies).
#
#   NNODES              Machines of the run.
#   NODE_RANK           Which one this is: 0 to NNODES-1. Its processes are ranks NODE_RANK*NPROC and up.
#   MASTER_ADDR         Address of machine 0, as the others reach it.
#   MASTER_PORT         A free port there (29500).
#   NPROC               Processes per machine, the same everywhere (4).
#   GLOO_SOCKET_IFNAME  Interface that messages take: the name that `ip -brief address` shows beside the address which
#                       the other machines reach. Without it Gloo takes what this host's name resolves to, which on
#                       many systems is the loopback interface.
#   BUILD_DIR           Where the programs are (build/cpu).
#   TORCHRUN            The launcher (.venv/bin/torchrun).
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${NNODES:?must be the number of machines, for example NNODES=2}"
: "${NODE_RANK:?must be the number of this machine, 0 to NNODES-1, for example NODE_RANK=0}"
: "${MASTER_ADDR:?must be the address of machine 0, for example MASTER_ADDR=10.0.0.1}"

arguments=(
  --nnodes "$NNODES"                        # All machines have to come; none joins later.
  --node-rank "$NODE_RANK"                  # Fixes which ranks run here, so that pipeline neighbours stay together.
  --nproc-per-node "${NPROC:-4}"            # WORLD_SIZE is NNODES times this.
  --master-addr "$MASTER_ADDR"              # Machine 0 hosts the store at which all processes meet.
  --master-port "${MASTER_PORT:-29500}"
  --no-python                               # What follows is a program, not a Python script.
)

# Ranks share a machine's cores: without this each starts as many threads as there are cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "${TORCHRUN:-.venv/bin/torchrun}" "${arguments[@]}" \
  "${BUILD_DIR:-build/cpu}/bin/pretrain_gpt" train --config "${1:-configs/gpt_tiny.yaml}" "${@:2}"
