// plugin/runtime/c10d_transport.h
//
// Transport over a c10d process group. Gloo (CPU): the group itself, messages told apart by tags. NCCL: one two-rank
// group per directed neighbour edge and channel, since NCCL ignores tags and runs a communicator's operations in order;
// they are created and warmed here, in one global edge order, over prefixed stores, so that no other rank is called.
//
// A wait that fails makes every later one of this rank fail with the same reason: the links of a Gloo group are broken
// then, all of them. What was under way is kept for the life of the process, since Gloo may still write to it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plugin/runtime/nccl_groups.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

struct C10dTransportOptions {
  std::chrono::milliseconds timeout{30 * 60 * 1000};  // Of one wait. A wait that times out breaks the group (Gloo).
  // Directed edges (from, to) that messages will use; NCCL alone needs them, the same lists on every rank: `edges` for
  // channel 0, `mirror_edges` for channels 1 and 2.
  std::vector<std::pair<int, int>> edges = {};
  std::vector<std::pair<int, int>> mirror_edges = {};
  int nccl_max_ctas = 0;  // CTAs that one edge's kernels may occupy; 0 leaves it to NCCL.
  // Asked after a wait that failed: where another rank has recorded why it leaves, the error says that.
  std::shared_ptr<FailureChannel> failures = nullptr;
  // Whose backend is taken where the group has several; without it the CPU's, if the group has one.
  std::optional<c10::DeviceType> device = std::nullopt;
  // Makes the groups of the links that end at a rank. Empty: make_nccl_edge_groups for NCCL, no groups for Gloo.
  std::function<std::vector<EdgeGroup>(const c10::intrusive_ptr<c10d::Store>&, int rank, const std::vector<Link>&)>
      make_edge_groups = {};
};

// The group outlives the transport. Over Gloo it makes all of Gloo's threads of this process yield where ranks
// outnumber processors (gloo_threads.h). Throws ScheduleError for a backend that is neither Gloo nor NCCL, naming both,
// and over Gloo for a DUALPIPE_GLOO_THREADS that is neither yield nor preempt.
std::shared_ptr<Transport> make_c10d_transport(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                               const C10dTransportOptions& options = {});

}  // namespace dualpipe
