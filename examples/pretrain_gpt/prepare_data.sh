#!/usr/bin/env bash
# examples/pretrain_gpt/prepare_data.sh
#
# Makes data/python.bin and data/python.idx from the sources of Python's standard library, once. Variable: BUILD_DIR
# (build/cpu).
set -euo pipefail
cd "$(dirname "$0")/../.."

[[ ! -f data/python.idx ]] || exit 0
sources=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
exec "${BUILD_DIR:-build/cpu}/bin/pretrain_gpt" prepare-data \
  --input "$sources" --extensions .py --max-bytes 8000000 --output data/python
