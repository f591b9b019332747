// tests/bench/support/meeting.h
//
// How the processes of a benchmark meet: a store on rank 0, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dualpipe::bench {

struct Meeting {
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<c10d::Store> store;
};

// Throws std::runtime_error where a variable is missing.
Meeting meet();
// The store's host leaves last. Quiet where a peer is gone: what failed is being reported.
void leave(const Meeting& meeting) noexcept;

// A Gloo group of all of them, on this machine alone.
c10::intrusive_ptr<c10d::ProcessGroup> make_local_group(const Meeting& meeting);

}  // namespace dualpipe::bench
