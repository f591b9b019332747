// tests/support/rank.h
//
// What a body gets that runs as one rank among several threads of the test.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "plugin/runtime/failure.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

struct Rank {
  int index = 0;
  int size = 0;
  std::shared_ptr<Transport> transport;
  std::shared_ptr<FailureChannel> failures;      // One for all ranks.
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // Null under run_ranks.
  c10::intrusive_ptr<c10d::Store> store;         // Null under run_ranks.
};

}  // namespace dualpipe
