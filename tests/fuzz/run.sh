#!/bin/sh
# Every libFuzzer program of a build for so many seconds, over its corpus; ends with 1 where one finds something, which
# then lies in BUILD_DIR/findings.
#
#   tests/fuzz/run.sh BUILD_DIR [SECONDS] [TARGET...]
set -eu
build=$1
seconds=${2:-60}
[ $# -gt 2 ] && shift 2 || set --
corpus=$(dirname "$0")/corpus
[ -z "${TMPDIR:-}" ] && [ -d /dev/shm ] && export TMPDIR=/dev/shm  # Targets that read files write one per input.
found=0
for folder in "$corpus"/*; do
  target=$(basename "$folder")
  case " ${*:-$target} " in *" $target "*) ;; *) continue ;; esac
  mkdir -p "$build/findings" "$build/corpus/$target"
  echo "$target"
  "$build/bin/fuzz_$target" "$build/corpus/$target" "$folder" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -malloc_limit_mb=256 -artifact_prefix="$build/findings/${target}_" \
    >"$build/findings/$target.log" 2>&1 || { found=1; tail -n 20 "$build/findings/$target.log"; }
  grep -E '^#[0-9]+[[:space:]]+DONE' "$build/findings/$target.log" || true
done
exit $found
