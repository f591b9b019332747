// DualPipe, one training and one inference step, compared with one process:
//   torchrun --nproc-per-node 4 --no-python build/cpu/bin/example_dualpipe
//
// Rank r holds stages r and P-1-r; micro-batches 0..M/2-1 enter at rank 0 and M/2..M-1 at rank P-1.
#include "examples/two_linears/run.h"

int main() { return two_linears::run_example("dualpipe", 20); }
