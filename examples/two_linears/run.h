// examples/two_linears/run.h
//
// One training step and one inference step under a schedule, beside the same model in one process with plain autograd.
#pragma once

#include <string>

namespace two_linears {

// Prints what was compared. Returns main()'s exit code: 0 where losses, outputs and every gradient are within 1e-10.
// A process per rank, started by torchrun; `num_microbatches` counts both directions.
int run_example(const std::string& schedule, int num_microbatches);

}  // namespace two_linears
