#include "plugin/runtime/distributed_optimizer.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "plugin/runtime/gradient_buffer.h"
#include "plugin/runtime/replica_layout.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kOrigin = "distributed_optimizer";

using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

std::vector<at::Tensor> trained(const Pipeline& pipeline) {
  std::vector<at::Tensor> parameters;
  for (const StageParameter& parameter : pipeline.parameters()) parameters.push_back(parameter.parameter);
  return parameters;
}

bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

at::Tensor part_of(const at::Tensor& tensor, const OptimizerShard& shard) {
  return tensor.detach().reshape({-1}).slice(0, shard.begin, shard.end);
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

// As torch::optim::AdamW, on `values` in place.
void adamw(OptimizerShard& state, const at::Tensor& values, const at::Tensor& gradient, const AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(++state.step));
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(state.step));
  if (options.weight_decay() != 0) values.mul_(1 - options.lr() * options.weight_decay());
  state.exp_avg.mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const at::Tensor scale = (state.exp_avg_sq.sqrt() / std::sqrt(correction2)).add_(options.eps());
  values.addcdiv_(state.exp_avg, scale, -options.lr() / correction1);
}

void require_same(const std::string& what, const std::string& given, const std::string& wanted) {
  if (given == wanted) return;
  throw ScheduleError(kOrigin, what + " of a checkpoint must be this rank's, " + wanted + ", got " + given +
                                   "; the same layout of ranks reads what it wrote");
}

void read_tensor(torch::serialize::InputArchive& archive, const std::string& key, at::Tensor& into) {
  at::Tensor value;
  archive.read(key, value);
  into.copy_(value);
}

}  // namespace

// The updated parts of a bucket under way.
struct DistributedOptimizer::Gathering {
  std::size_t bucket;
  at::Tensor mine, all;
  std::unique_ptr<Transfer> transfer;
};

DistributedOptimizer::DistributedOptimizer(Pipeline& pipeline, AdamWOptions options)
    : DistributedOptimizer(pipeline, {OptimizerParamGroup(trained(pipeline))}, std::move(options)) {}

DistributedOptimizer::DistributedOptimizer(Pipeline& pipeline, const std::vector<OptimizerParamGroup>& groups,
                                           AdamWOptions defaults)
    : Optimizer(groups, std::make_unique<AdamWOptions>(std::move(defaults))), pipeline_(pipeline) {
  find_param_groups();
  make_shards();
}

DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::find_param_groups() {
  std::map<const at::TensorImpl*, std::size_t> known;
  for (std::size_t i = 0; i < pipeline_.parameters().size(); ++i)
    known[pipeline_.parameters()[i].parameter.unsafeGetTensorImpl()] = i;
  for (std::size_t group = 0; group < param_groups().size(); ++group) {
    if (static_cast<const AdamWOptions&>(param_groups()[group].options()).amsgrad())
      throw ScheduleError(kOrigin, "amsgrad must be false, got true; its maximum is not kept");
    for (const at::Tensor& parameter : param_groups()[group].params()) {
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      if (found == known.end()) {
        throw ScheduleError(kOrigin, "parameters must be those that the pipeline trains on this rank, got another of " +
                                         std::to_string(parameter.numel()) +
                                         " elements; give it to an optimizer of its own");
      }
      param_group_of_[found->second] = group;
    }
  }
}

void DistributedOptimizer::make_shards() {
  at::NoGradGuard no_grad;
  const std::shared_ptr<const ReplicaLayout> layout = pipeline_.replica_layout();
  const std::vector<StageParameter>& parameters = pipeline_.parameters();
  if (layout) {
    for (const ReplicaBucket& bucket : layout->buckets) {
      of_bucket_.emplace_back();
      for (const ParameterPiece& piece : layout->pieces_of(bucket, layout->groups[bucket.group]->rank(), parameters)) {
        of_bucket_.back().push_back(shards_.size());
        add_shard(piece.index, piece.begin, piece.end, piece.offset);
      }
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (layout && layout->group_of[i]) continue;
    alone_.push_back(shards_.size());
    add_shard(i, 0, parameters[i].parameter.numel(), 0);
  }
}

void DistributedOptimizer::add_shard(std::size_t index, std::int64_t begin, std::int64_t end, std::int64_t offset) {
  OptimizerShard shard{index, begin, end, offset, 0, {}, {}, {}};
  const at::Tensor values = parameter_of(shard);
  if (is_narrow(values)) shard.master = values.to(at::kFloat);
  shard.exp_avg = at::zeros_like(shard.master.defined() ? shard.master : values);
  shard.exp_avg_sq = at::zeros_like(shard.exp_avg);
  shards_.push_back(std::move(shard));
}

at::Tensor DistributedOptimizer::parameter_of(const OptimizerShard& shard) const {
  return part_of(pipeline_.parameters()[shard.index].parameter, shard);
}

void DistributedOptimizer::read_parameters() {
  at::NoGradGuard no_grad;
  for (OptimizerShard& shard : shards_) {
    if (shard.master.defined()) shard.master.copy_(parameter_of(shard));
  }
}

bool DistributedOptimizer::is_trained(std::size_t index) const {
  return param_group_of_.contains(index) && pipeline_.gradients().gradient(index).defined();
}

// `values` are the shard's parameters, and become the updated ones.
void DistributedOptimizer::update(OptimizerShard& shard, const at::Tensor& values) {
  if (!is_trained(shard.index)) return;
  const at::Tensor trained = shard.master.defined() ? shard.master : values;
  const at::Tensor gradient = part_of(pipeline_.gradients().gradient(shard.index), shard).to(trained.scalar_type());
  const OptimizerParamGroup& group = param_groups()[param_group_of_.at(shard.index)];
  adamw(shard, trained, gradient, static_cast<const AdamWOptions&>(group.options()));
  if (shard.master.defined()) values.copy_(shard.master);
}

std::optional<DistributedOptimizer::Gathering> DistributedOptimizer::start_gathering(std::size_t number) {
  const ReplicaLayout& layout = *pipeline_.replica_layout();
  const ReplicaBucket& bucket = layout.buckets[number];
  const auto trained_here = [this](std::size_t index) { return is_trained(index); };
  if (std::none_of(bucket.indices.begin(), bucket.indices.end(), trained_here)) return std::nullopt;
  GroupCollectives& group = *layout.groups[bucket.group];
  const std::int64_t size = layout.part_size(bucket);
  const at::Tensor& like = pipeline_.parameters()[bucket.indices.front()].parameter;
  const at::Tensor mine = at::zeros({size}, like.options().requires_grad(false));
  for (std::size_t i : of_bucket_[number]) {
    const at::Tensor values = mine.narrow(0, shards_[i].offset, shards_[i].end - shards_[i].begin);
    values.copy_(parameter_of(shards_[i]));
    update(shards_[i], values);
  }
  const at::Tensor all = at::empty({group.size() * size}, mine.options());
  return Gathering{number, mine, all, group.start_all_gather(all, mine)};
}

void DistributedOptimizer::finish_gathering(Gathering& gathering) const {
  gathering.transfer->wait();
  std::int64_t offset = 0;
  for (std::size_t index : pipeline_.replica_layout()->buckets[gathering.bucket].indices) {
    at::Tensor parameter = pipeline_.parameters()[index].parameter;
    parameter.copy_(gathering.all.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
}

void DistributedOptimizer::update_alone(OptimizerShard& shard) {
  at::Tensor parameter = pipeline_.parameters()[shard.index].parameter;
  const at::Tensor values = parameter_of(shard).clone();
  update(shard, values);
  parameter.copy_(values.view(parameter.sizes()));
}

at::Tensor DistributedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  at::NoGradGuard no_grad;
  std::vector<Gathering> under_way;
  for (std::size_t bucket = 0; bucket < of_bucket_.size(); ++bucket) {
    if (auto started = start_gathering(bucket)) under_way.push_back(std::move(*started));
  }
  for (std::size_t i : alone_) update_alone(shards_[i]);
  for (Gathering& gathering : under_way) finish_gathering(gathering);
  return loss;
}

OptimizerBytes DistributedOptimizer::bytes() const {
  OptimizerBytes bytes;
  for (const StageParameter& parameter : pipeline_.parameters()) {
    bytes.parameters += bytes_of(parameter.parameter);
    bytes.gradients +=
        parameter.parameter.numel() * static_cast<std::int64_t>(at::elementSize(gradient_dtype(parameter)));
  }
  for (const OptimizerShard& shard : shards_)
    bytes.state += bytes_of(shard.master) + bytes_of(shard.exp_avg) + bytes_of(shard.exp_avg_sq);
  return bytes;
}

void DistributedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  archive.write("shards", static_cast<std::int64_t>(shards_.size()));
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const OptimizerShard& shard = shards_[i];
    torch::serialize::OutputArchive part;
    part.write("name", full_name(pipeline_.parameters()[shard.index]));
    part.write("begin", shard.begin);
    part.write("end", shard.end);
    part.write("step", shard.step);
    part.write("exp_avg", shard.exp_avg);
    part.write("exp_avg_sq", shard.exp_avg_sq);
    if (shard.master.defined()) part.write("master", shard.master);
    archive.write(std::to_string(i), part);
  }
}

void DistributedOptimizer::load(torch::serialize::InputArchive& archive) {
  at::NoGradGuard no_grad;
  c10::IValue count;
  archive.read("shards", count);
  require_same("the number of shards", std::to_string(count.toInt()), std::to_string(shards_.size()));
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    OptimizerShard& shard = shards_[i];
    torch::serialize::InputArchive part;
    archive.read(std::to_string(i), part);
    const auto read = [&](const std::string& key) {
      c10::IValue value;
      part.read(key, value);
      return value;
    };
    const std::string range = std::to_string(shard.begin) + " to " + std::to_string(shard.end);
    require_same("shard " + std::to_string(i),
                 read("name").toStringRef() + " " + std::to_string(read("begin").toInt()) + " to " +
                     std::to_string(read("end").toInt()),
                 full_name(pipeline_.parameters()[shard.index]) + " " + range);
    shard.step = read("step").toInt();
    read_tensor(part, "exp_avg", shard.exp_avg);
    read_tensor(part, "exp_avg_sq", shard.exp_avg_sq);
    if (shard.master.defined()) read_tensor(part, "master", shard.master);
  }
}

}  // namespace dualpipe
