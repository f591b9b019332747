#include "plugin/runtime/replica_reduction.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "plugin/runtime/gradient_buffer.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kOrigin = "replica_reduction";

// A bucket's collective under way.
struct UnderWay {
  const ReplicaBucket* bucket;
  at::Tensor sums;  // What was summed, then the flags.
  std::unique_ptr<Transfer> transfer;
};

class ReplicaReduction final : public GradientReduction {
 public:
  ReplicaReduction(std::shared_ptr<const ReplicaLayout> layout, ReplicaReductionOptions options)
      : layout_(std::move(layout)), options_(std::move(options)), waiting_(layout_->groups.size()) {
    refill();
  }

  void start(int stage, Gradients& gradients) override {
    at::NoGradGuard no_grad;
    started_.insert(stage);
    for (auto& queue : waiting_) {
      for (; !queue.empty() && is_complete(*queue.front(), gradients); queue.pop_front()) {
        post(*queue.front(), gradients);
      }
    }
  }

  void finish(Gradients& gradients) override {
    at::NoGradGuard no_grad;
    for (const auto& queue : waiting_) check(queue.empty(), "all stages are started before reductions are finished");
    for (; !under_way_.empty(); under_way_.pop_front()) {
      under_way_.front().transfer->wait();
      options_.shard_gradients ? restore_part(under_way_.front(), gradients) : restore(under_way_.front(), gradients);
    }
    started_.clear();
    refill();
  }

 private:
  void refill() {
    for (const ReplicaBucket& bucket : layout_->buckets) waiting_[bucket.group].push_back(&bucket);
  }

  bool is_complete(const ReplicaBucket& bucket, const Gradients& gradients) const {
    return std::all_of(bucket.indices.begin(), bucket.indices.end(),
                       [&](std::size_t index) { return started_.contains(gradients.parameters()[index].stage); });
  }

  void post(const ReplicaBucket& bucket, Gradients& gradients) {
    refuse_sparse(kOrigin, bucket.indices, gradients);
    const GroupCollectives& group = *layout_->groups[bucket.group];
    const at::Device device = gradients.parameters()[bucket.indices.front()].parameter.device();
    const at::ScalarType dtype =
        options_.shard_gradients ? bucket.gradient_dtype : group.sum_dtype(bucket.gradient_dtype, device);
    TensorList flat = flat_gradients(bucket.indices, gradients, dtype);
    const at::Tensor flags = gradient_flags(bucket.indices, gradients, dtype);
    under_way_.push_back(options_.shard_gradients ? start_part(bucket, std::move(flat), flags)
                                                  : start_whole(bucket, std::move(flat), flags));
    if (options_.on_start) options_.on_start(bucket);
  }

  UnderWay start_whole(const ReplicaBucket& bucket, TensorList flat, const at::Tensor& flags) {
    flat.push_back(flags);
    const at::Tensor all = at::cat(flat);
    return {&bucket, all, layout_->groups[bucket.group]->start_all_reduce_sum(all)};
  }

  // Every member's part carries all flags.
  UnderWay start_part(const ReplicaBucket& bucket, TensorList flat, const at::Tensor& flags) {
    GroupCollectives& group = *layout_->groups[bucket.group];
    const std::int64_t members = group.size();
    const std::int64_t part = layout_->part_size(bucket);
    flat.push_back(at::zeros({members * part - bucket.elements}, flags.options()));
    const at::Tensor all = at::cat({at::cat(flat).view({members, part}), flags.expand({members, flags.numel()})}, 1);
    const at::Tensor mine = at::empty({part + flags.numel()}, all.options());
    return {&bucket, mine, group.start_reduce_scatter_sum(mine, all.view({-1}))};
  }

  static at::Tensor flags_of(const UnderWay& done) {
    const auto count = static_cast<std::int64_t>(done.bucket->indices.size());
    return done.sums.narrow(0, done.sums.numel() - count, count);
  }

  static void restore(const UnderWay& done, Gradients& gradients) {
    restore_gradients(done.bucket->indices, done.sums, flags_of(done), gradients);
  }

  void restore_part(const UnderWay& done, Gradients& gradients) const {
    const ReplicaBucket& bucket = *done.bucket;
    const int member = layout_->groups[bucket.group]->rank();
    const std::int64_t part = layout_->part_size(bucket);
    at::Tensor whole = at::zeros({bucket.elements}, done.sums.options());
    const std::int64_t begin = std::min(member * part, bucket.elements);
    const std::int64_t length = std::min(part, bucket.elements - begin);
    whole.narrow(0, begin, length).copy_(done.sums.narrow(0, 0, length));
    restore_gradients(bucket.indices, whole, flags_of(done), gradients);
  }

  std::shared_ptr<const ReplicaLayout> layout_;
  ReplicaReductionOptions options_;
  std::set<int> started_;                                  // Stages, of this step.
  std::vector<std::deque<const ReplicaBucket*>> waiting_;  // By group, in the members' order.
  std::deque<UnderWay> under_way_;                         // In the order of starting.
};

}  // namespace

std::unique_ptr<GradientReduction> replica_reduction(std::shared_ptr<const ReplicaLayout> layout,
                                                     ReplicaReductionOptions options) {
  return std::make_unique<ReplicaReduction>(std::move(layout), std::move(options));
}

}  // namespace dualpipe
