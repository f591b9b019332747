// examples/two_linears/launch.h
//
// A Gloo process group from the variables that torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Without them:
// one process.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace two_linears {

c10::intrusive_ptr<c10d::ProcessGroup> process_group();

}  // namespace two_linears
