// tests/support/edge_groups.h
//
// Two-rank Gloo groups in the place of NCCL's, so that a machine without GPUs runs the transport's path for them.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "plugin/runtime/c10d_transport.h"

namespace dualpipe {

// As make_nccl_edge_groups.
std::vector<EdgeGroup> make_gloo_edge_groups(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             const std::vector<Link>& links, std::chrono::milliseconds timeout);

// With every link there can be.
std::shared_ptr<Transport> make_edge_transport(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                               std::chrono::milliseconds timeout);

}  // namespace dualpipe
