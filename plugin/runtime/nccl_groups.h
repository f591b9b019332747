// plugin/runtime/nccl_groups.h
//
// The NCCL groups of a pipeline: nccl_groups.cc where CUDA is built in, nccl_groups_stub.cc, which says so when called,
// where it is not.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <vector>

#include "plugin/runtime/link.h"

namespace dualpipe {

struct EdgeGroup {
  Link link;
  c10::intrusive_ptr<c10d::Backend> group;  // Rank 0 is `from`, rank 1 is `to`.
};

// The two-rank groups of those of the `links` that end at `rank`, created and warmed (one byte is moved) in the order
// of the list, which is the same on every rank; no other rank is called. `max_ctas` 0 leaves the number of CTAs to
// NCCL.
std::vector<EdgeGroup> make_nccl_edge_groups(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             const std::vector<Link>& links, std::chrono::milliseconds timeout,
                                             int max_ctas);

bool nccl_is_built_in();

}  // namespace dualpipe
