// tests/bench/overlap/expert_group.h
//
// The all-to-all between two expert-parallel ranks: alltoall_base over Gloo, each rank sending all it has to the other.
//
// Gloo has one connection per pair of ranks and group, and a rank whose peer is already waiting sends its payload ahead
// of its own "ready to receive": the two directions then follow one another, and the exchange takes twice as long as
// the links need. Which of the two happens is a race. Here each direction has a group, so links work both ways at once,
// as networks of real clusters do; a group has one thread, so exchanges move in the order in which they were posted.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "plugin/runtime/phase.h"

namespace dualpipe::bench {

class ExpertGroup {
 public:
  // Collective over both ranks; messages take the interface GLOO_SOCKET_IFNAME.
  ExpertGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank);

  // Starts sending `mine` to the other rank and receiving as much from it. What wait() returns is `then` of that.
  std::unique_ptr<PendingExchange> start(at::Tensor mine, std::function<at::Tensor(const at::Tensor&)> then = {});

  int rank() const { return rank_; }

 private:
  int rank_;
  std::array<c10::intrusive_ptr<c10d::Backend>, 2> from_;  // By sender.
};

// A Gloo backend on the interface GLOO_SOCKET_IFNAME.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                            int rank, int size, int threads);

}  // namespace dualpipe::bench
