// plugin/runtime/distributed_optimizer.h
//
// AdamW whose state is divided over the members of each gradient group (ZeRO stage 1): a stage that DualPipe keeps
// twice, or data parallelism DP times, has one state.
//
//   DistributedOptimizer optimizer(pipeline, torch::optim::AdamWOptions(1e-3));
//   OptimizerHook hook(pipeline, optimizer, 1.0);      // As with any optimizer.
//
// A member owns its part of every bucket of the group (plugin/runtime/replica_layout.h): it updates that part as
// torch::optim::AdamW would, and step() gathers the updated parts of all members, so that copies are equal to the bit.
// It reads the final gradients, whole or sharded (PipelineOptions::shard_gradients, which halves the traffic of
// reduction). Parameters in no group are updated here alone. Of bfloat16 and half parameters a float32 copy is kept,
// which is what is trained.
//
// Bytes per rank, N elements of parameters of p bytes with gradients of g bytes, divided among D members (up to the
// padding of a bucket, an element per member):
//
//   parameters N p, gradients N g, state N/D (4 + 4) for float32, N/D (8 + 8) for float64, N/D (4 + 4 + 4) for bfloat16
#pragma once

#include <torch/optim/adamw.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "plugin/runtime/dualpipe.h"

namespace dualpipe {

// What this rank owns of one parameter: elements begin to end, flattened.
struct OptimizerShard {
  std::size_t index = 0;  // Into Pipeline::parameters().
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;  // In the part of its bucket.
  std::int64_t step = 0;
  at::Tensor master;  // The float32 copy; undefined where the parameter itself is trained.
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

struct OptimizerBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t state = 0;
};

class DistributedOptimizer final : public torch::optim::Optimizer {
 public:
  // Of all parameters that the pipeline trains, or of those in `groups`, each with its own options. `pipeline` outlives
  // it. Throws ScheduleError for amsgrad, and for a parameter that the pipeline does not train.
  explicit DistributedOptimizer(Pipeline& pipeline, torch::optim::AdamWOptions options = {});
  DistributedOptimizer(Pipeline& pipeline, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       torch::optim::AdamWOptions defaults = {});
  ~DistributedOptimizer() override;

  // Collective over the gradient groups. Parameters without a gradient stay as they are.
  at::Tensor step(LossClosure closure = nullptr) override;

  // What this rank owns, in one order on every run of one layout: what a checkpoint has to hold.
  std::vector<OptimizerShard>& shards() { return shards_; }
  // This rank's part alone; read back by the same rank of the same layout, else refused with ScheduleError.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // The parameters were written from outside (a checkpoint): the float32 copies follow.
  void read_parameters();

  OptimizerBytes bytes() const;

 private:
  struct Gathering;

  void make_shards();
  void add_shard(std::size_t index, std::int64_t begin, std::int64_t end, std::int64_t offset);
  void find_param_groups();
  bool is_trained(std::size_t index) const;
  void update(OptimizerShard& shard, const at::Tensor& values);
  void update_alone(OptimizerShard& shard);
  at::Tensor parameter_of(const OptimizerShard& shard) const;
  std::optional<Gathering> start_gathering(std::size_t number);
  void finish_gathering(Gathering& gathering) const;

  Pipeline& pipeline_;
  std::vector<OptimizerShard> shards_;                 // Those of a bucket stand together.
  std::vector<std::vector<std::size_t>> of_bucket_;    // Indices into shards_, by bucket of the layout.
  std::vector<std::size_t> alone_;                     // Those of parameters in no group.
  std::map<std::size_t, std::size_t> param_group_of_;  // By parameter; those that are not trained here lack one.
};

}  // namespace dualpipe
