#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "plugin/runtime/pipeline_impl.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

std::map<int, TensorList> by_micro_batch(const std::string& what, const std::vector<int>& ids,
                                         const MicroBatches& given) {
  if (given.size() != ids.size()) {
    throw ScheduleError("step", fmt::format("{} must hold one entry for each of this rank's {} micro-batches, got {}",
                                            what, ids.size(), given.size()));
  }
  std::map<int, TensorList> result;
  for (std::size_t i = 0; i < ids.size(); ++i) result[ids[i]] = given[i];
  return result;
}

// Where a gradient that is the sum of all micro-batches is not finite: on this rank, or only over ranks.
constexpr Crossing kOwnGradient = Crossing::kOutputGradient;
constexpr Crossing kSummedGradient = Crossing::kInputGradient;

// A gradient of a rank's own comes before the sums over ranks that it spoils, whatever their stages (tied weights).
bool is_earlier(const NonFiniteSighting& a, const NonFiniteSighting& b) {
  const auto is_sum = [](const NonFiniteSighting& s) { return !s.what.micro_batch && s.crossing == kSummedGradient; };
  return is_sum(a) == is_sum(b) ? a.is_before(b) : is_sum(b);
}

}  // namespace

MicroBatches Pipeline::Impl::split(const TensorList& batch, std::size_t count) const {
  if (batch.empty()) return MicroBatches(count);
  if (count == 0) throw ScheduleError("step", "this rank takes no inputs or labels of this kind; pass an empty list");
  for (const at::Tensor& tensor : batch) {
    if (!tensor.defined() || tensor.dim() == 0 || options.variable_seq_lengths) continue;
    if (tensor.size(0) % static_cast<std::int64_t>(count) == 0) continue;
    throw ScheduleError("step", fmt::format("{} rows do not divide into {} micro-batches of one shape; give a multiple "
                                            "of {}, or set variable_seq_lengths: true",
                                            tensor.size(0), count, count));
  }
  return split_rows(batch, static_cast<int>(count));
}

StepInputs Pipeline::Impl::step_inputs(const MicroBatches& inputs, const MicroBatches& labels,
                                       const Criterion* criterion) {
  StepInputs step;
  step.inputs = by_micro_batch("inputs", plan.input_ids, inputs);
  step.labels = by_micro_batch("labels", plan.loss_ids, labels);
  step.criterion = criterion;
  weight_of.clear();
  double local = 0;
  for (int k : plan.loss_ids) {
    weight_of[k] = criterion == nullptr ? 0 : criterion->weight_of(step.labels.at(k));
    local += weight_of[k];
  }
  if (!plan.loss_ids.empty()) weights->start(local);
  const bool sum = criterion != nullptr && criterion->returns_sum;
  step.loss_scale = [this, sum](int k) { return weights->share(sum ? 1.0 : weight_of.at(k)); };
  return step;
}

// The mean loss of the global batch from each end's part; nothing where no rank has a criterion. Where replicas have
// parts too, the ends have their sum already, and one of them passes it on.
std::optional<double> Pipeline::Impl::mean_over_ranks(double local, bool has_losses) {
  at::Tensor parts = at::tensor({local, has_losses ? 1.0 : 0.0}, at::kDouble);
  if (const auto& members = replicas.losses()) {
    parts = parts.to(members->device());
    if (!plan.loss_ids.empty()) members->all_reduce_sum(parts);
    if (transport->rank() != plan.first_loss_rank()) parts.zero_();
  }
  parts = parts.to(transport->device());
  const RingScope logged(*log, RingKind::kCollective, "the mean loss");
  transport->all_reduce_sum(parts);
  const at::Tensor sums = parts.cpu();
  if (sums[1].item<double>() == 0) return std::nullopt;
  return sums[0].item<double>();
}

StepResult Pipeline::Impl::results(StepOutputs outputs, const Criterion* criterion) {
  StepResult result;
  double local = 0;
  for (auto& [k, loss] : outputs.losses) {
    const double weight = weight_of.at(k);
    const bool sum = criterion->returns_sum;
    if (options.mean_loss_on_every_rank) local += loss.item<double>() * weights->share(sum ? 1.0 : weight);
    if (sum) loss = weight > 0 ? loss / weight : at::zeros_like(loss);
    result.losses.push_back(loss);
  }
  for (auto& [k, tensors] : outputs.outputs) result.outputs.push_back(std::move(tensors));
  if (!plan.loss_ids.empty()) weights->finish();
  if (options.mean_loss_on_every_rank) result.mean_loss = mean_over_ranks(local, !outputs.losses.empty());
  result.statistics = all_statistics();
  return result;
}

// Inputs that come out of a graph of the host's: one backward for all of them, since they may share it.
void Pipeline::Impl::backward_into_host(const MicroBatches& inputs, StepOutputs& outputs) {
  TensorList roots;
  TensorList gradients_in;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto found = outputs.input_grads.find(plan.input_ids[i]);
    if (found == outputs.input_grads.end()) continue;
    for (std::size_t t = 0; t < inputs[i].size(); ++t) {
      if (!inputs[i][t].defined() || !inputs[i][t].requires_grad() || !found->second[t].defined()) continue;
      roots.push_back(inputs[i][t]);
      gradients_in.push_back(found->second[t]);
    }
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients_in);
}

void Pipeline::Impl::require_no_pending_gradients() const {
  if (!gradients_open) return;
  throw ScheduleError("step", fmt::format("the last step's gradients are not final (pending: {}); call "
                                          "finish_gradients() or OptimizerHook::step() first",
                                          executor->store().empty() ? "reductions" : executor->store().describe()));
}

StepResult Pipeline::Impl::run(const MicroBatches& inputs, const MicroBatches& labels, const Criterion* criterion,
                               bool training, bool return_outputs) {
  require_no_pending_gradients();
  if (training) compare_copies();
  StepInputs step = step_inputs(inputs, labels, criterion);
  step.training = training;
  step.return_outputs = return_outputs;
  if (training) gradients->begin_step();
  if (training && watch != nullptr) watch->begin_step();
  reductions.clear();
  gradients_open = gradients_open || training;
  const Program& program = training ? plan.training : plan.evaluation;
  StepOutputs outputs = executor->run(program.rows[transport->rank()], std::move(step));
  if (training && !options.defer_tail_weight_gradients) finish_gradients();
  if (training) backward_into_host(inputs, outputs);
  return results(std::move(outputs), criterion);
}

StepResult Pipeline::Impl::run_split(const TensorList& inputs, const TensorList& labels, const Criterion* criterion,
                                     bool training, bool return_outputs) {
  return run(split(inputs, plan.input_ids.size()), split(labels, plan.loss_ids.size()), criterion, training,
             return_outputs);
}

void Pipeline::Impl::finish_gradients() {
  if (!gradients_open) return;
  const auto& deferred = plan.training.deferred_weight;
  if (!deferred.empty()) executor->run_deferred(deferred[transport->rank()]);
  for (int stage : plan.reduction_order) {
    if (!executor->reduced().contains(stage)) reduction->start(stage, *gradients);
  }
  {
    const RingScope logged(*log, RingKind::kCollective, "the sum of gradients");
    reduction->finish(*gradients);
  }
  gradients->finish_step();
  gradients_open = false;
  statistics = all_statistics();
}

// What crossed a stage, else a gradient of this rank's own, else a sum over ranks; both are of all micro-batches.
std::optional<NonFiniteSighting> Pipeline::Impl::first_non_finite() const {
  const int rank = replicas.world()->rank();
  if (auto sighting = executor->first_non_finite(rank)) return sighting;
  const auto& parameters = gradients->parameters();
  const auto gradient_of = [&](std::size_t index, Crossing crossing) {
    const std::string name = "the gradient of " + full_name(parameters[index]);
    return NonFiniteSighting{{rank, parameters[index].stage, {}, name}, crossing};
  };
  if (const auto own = watch != nullptr ? watch->first() : std::nullopt) return gradient_of(*own, kOwnGradient);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_finite(gradients->gradient(i))) return gradient_of(i, sums_gradients ? kSummedGradient : kOwnGradient);
  }
  return std::nullopt;
}

std::optional<NonFinite> Pipeline::Impl::find_non_finite() {
  std::optional<NonFiniteSighting> first;
  for (const std::string& text : replicas.world()->all_gather(encode(first_non_finite()))) {
    const auto sighting = decode_sighting(text);
    if (sighting && (!first || is_earlier(*sighting, *first))) first = sighting;
  }
  return first ? std::optional(first->what) : std::nullopt;
}

void Pipeline::Impl::compare_copies() {
  if (!std::exchange(copies_compared, true)) check_copies(*replicas.world(), gradients->parameters());
}

StepStatistics Pipeline::Impl::all_statistics() const {
  StepStatistics all = executor->statistics();
  all.reductions = reductions;
  return all;
}

}  // namespace dualpipe
