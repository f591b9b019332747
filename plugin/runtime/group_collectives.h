// plugin/runtime/group_collectives.h
//
// Collectives over a host's c10d process group, those of gradients among them, which run behind compute.
//
// Unlike Transport's these are the backend's own: sums cost what a ring costs, and what a host does on the same group
// between steps does not mix with them. The order of starting is the same on all members.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/runtime/c10d_waiter.h"
#include "plugin/runtime/collectives.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

class GroupCollectives final : public Collectives {
 public:
  // `timeout` of one wait; `failures` may be null. Over Gloo its threads yield as under make_c10d_transport(). Throws
  // ScheduleError for a group without a backend, or for another DUALPIPE_GLOO_THREADS than yield or preempt.
  GroupCollectives(c10::intrusive_ptr<c10d::ProcessGroup> group, std::chrono::milliseconds timeout,
                   std::shared_ptr<FailureChannel> failures);

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  void all_reduce_sum(at::Tensor& tensor) override;
  std::vector<std::string> all_gather(const std::string& bytes) override;
  void abort(const std::string& why) override;
  at::Device device() const override;

  // Started, not waited for. Tensors are contiguous and stay alive with the transfer; empty ones are moved by nobody.
  std::unique_ptr<Transfer> start_all_reduce_sum(at::Tensor tensor);  // In place; equal bits everywhere.
  // `all` holds one part of mine's size per member, by rank; `mine` becomes the sum of this rank's parts. Over Gloo,
  // whose own operation sums everything everywhere, parts are exchanged and added here, in the order of ranks.
  std::unique_ptr<Transfer> start_reduce_scatter_sum(at::Tensor mine, at::Tensor all);
  // `mine` of every member into `all`, by rank, as bytes: any dtype.
  std::unique_ptr<Transfer> start_all_gather(at::Tensor all, at::Tensor mine);

  // The dtype in which tensors of `dtype` on a device are summed: Gloo knows no sum of bfloat16, nor a good one of
  // half.
  at::ScalarType sum_dtype(at::ScalarType dtype, at::Device device) const;

  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }

 private:
  template <typename Start>
  std::unique_ptr<Transfer> start(const at::Tensor& tensor, Start start, std::function<void()> after = {});
  bool is_gloo(at::Device device) const;

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<C10dWaiter> on_host_;    // For what Gloo does.
  std::shared_ptr<C10dWaiter> on_device_;  // For what NCCL does: a wait of the stream, without a timeout.
};

// all_gather() over several groups at once, so that members need not list theirs in one order. By group, by rank.
std::vector<std::vector<std::string>> gather_over(const std::vector<GroupCollectives*>& groups,
                                                  const std::vector<std::string>& bytes);

}  // namespace dualpipe
