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

// A group over all ranks of `store`, for a host's own communicators (expert, data): `max_ctas` is how much of the GPU
// their kernels may take from the compute beside them, 0 leaves it to NCCL. Collective; give every group a prefixed
// store of its own.
c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  std::chrono::milliseconds timeout, int max_ctas = 0);

bool nccl_is_built_in();

}  // namespace dualpipe
