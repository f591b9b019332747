// DualPipeV, one training and one inference step, compared with one process:
//   torchrun --nproc-per-node 4 --no-python build/cpu/bin/example_dualpipev
//
// Rank r holds stages r and 2P-1-r; all micro-batches enter, and all losses are computed, at rank 0.
#include "examples/two_linears/run.h"

int main() { return two_linears::run_example("dualpipev", 10); }
