#include "plugin/runtime/replicas.h"

#include <fmt/format.h>

#include <numeric>
#include <random>
#include <utility>

#include "plugin/runtime/agree.h"
#include "plugin/runtime/replica_checks.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

// One among all ranks that could ever meet in a group.
std::string draw_identity() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

}  // namespace

Replicas::Replicas(const PipelineOptions& options, std::shared_ptr<Transport> pipeline)
    : pipeline_(std::move(pipeline)), world_(pipeline_), numbers_(pipeline_->size()) {
  std::iota(numbers_.begin(), numbers_.end(), 0);
  if (const auto& world = options.parallel.world)
    world_ = std::make_shared<GroupCollectives>(world, options.timeout, options.failures);
}

void Replicas::together(const std::function<void()>& body) {
  std::optional<std::string> error;
  try {
    body();
  } catch (const ScheduleError& mistake) {
    error = mistake.what();
  }
  agree(*world_, {}, error);
}

void Replicas::connect(const PipelineOptions& options, const std::vector<StageParameter>& parameters,
                       const std::vector<int>& reduction_order, bool computes_losses, std::optional<int> mirror) {
  const ParallelGroups& groups = options.parallel;
  if (groups.alone()) return;
  if (groups.world) {
    const std::vector<std::string> gathered = pipeline_->all_gather(std::to_string(world_->rank()));
    for (std::size_t rank = 0; rank < gathered.size(); ++rank) numbers_[rank] = std::stoi(gathered[rank]);
  }
  check_group_sizes(*world_, groups, parameters, computes_losses);
  const std::string identity = draw_identity();
  together([&] { find_groups(options, parameters, reduction_order, identity); });
  const bool sums_mirrors = options.reduce_mirrors && !groups.gradients.empty();
  const KnownMembers known{identity, loss_members_, computes_losses, mirror, sums_mirrors, options.shard_gradients};
  const ReplicaLayout none{{}, {}, std::vector<std::optional<std::size_t>>(parameters.size()), {}};
  together([&] { tied_ = check_members(*pipeline_, known, layout_ ? *layout_ : none, parameters); });
  describe_parts(parameters, options.shard_gradients);
}

void Replicas::find_groups(const PipelineOptions& options, const std::vector<StageParameter>& parameters,
                           const std::vector<int>& reduction_order, const std::string& identity) {
  const ParallelGroups& groups = options.parallel;
  if (groups.losses) {
    losses_ = std::make_shared<GroupCollectives>(groups.losses, options.timeout, options.failures);
    loss_members_ = losses_->all_gather(identity);
  }
  if (groups.gradients.empty()) return;
  layout_ = std::make_shared<ReplicaLayout>(
      agree_on_layout(groups.gradients, parameters,
                      {reduction_order, options.gradient_bucket_bytes, identity, options.timeout, options.failures}));
}

void Replicas::describe_parts(const std::vector<StageParameter>& parameters, bool sharded) {
  if (!sharded) return;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto group = layout_->group_of[i];
    const std::int64_t numel = parameters[i].parameter.numel();
    parts_.push_back(group ? GradientPart{0, 0, layout_->members[*group].front()} : GradientPart{0, numel, {}});
  }
  for (const ReplicaBucket& bucket : layout_->buckets) {
    for (const ParameterPiece& piece : layout_->pieces_of(bucket, layout_->groups[bucket.group]->rank(), parameters)) {
      parts_[piece.index].begin = piece.begin;
      parts_[piece.index].end = piece.end;
    }
  }
}

void Replicas::abort(const std::string& why) {
  pipeline_->abort(why);
  if (world_ != pipeline_) world_->abort(why);
  if (losses_) losses_->abort(why);
  if (!layout_) return;
  for (const auto& group : layout_->groups) group->abort(why);
}

}  // namespace dualpipe
