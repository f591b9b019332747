#include "plugin/runtime/gradients.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kOrigin = "gradients";

using Stages = std::vector<std::pair<int, std::shared_ptr<StageModule>>>;

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw ScheduleError(kOrigin, message.str());
}

// Last reduced first, then those that are not reduced.
Stages walk_order(const Stages& stages, const std::vector<int>& reduction_order) {
  auto position = [&](int stage) { return std::find(reduction_order.rbegin(), reduction_order.rend(), stage); };
  Stages walk = stages;
  std::stable_sort(walk.begin(), walk.end(),
                   [&](const auto& a, const auto& b) { return position(a.first) < position(b.first); });
  return walk;
}

bool uses(const StageParameter& parameter, int stage) {
  const std::vector<int>& others = parameter.shared_with;
  return stage == parameter.stage || std::find(others.begin(), others.end(), stage) != others.end();
}

int lowest_stage(const StageParameter& parameter) {
  int lowest = parameter.stage;
  for (int stage : parameter.shared_with) lowest = std::min(lowest, stage);
  return lowest;
}

void add_user(StageParameter& parameter, int stage, const std::string& name) {
  if (stage < lowest_stage(parameter)) parameter.name = name;
  if (!uses(parameter, stage)) parameter.shared_with.push_back(stage);
}

struct Walk {
  std::vector<StageParameter> trained;
  std::vector<std::string> frozen;  // Names.
};

Walk walk_parameters(const Stages& stages) {
  Walk walk;
  std::map<const at::TensorImpl*, std::size_t> seen;
  for (const auto& [stage, module] : stages) {
    for (const auto& item : module->named_parameters()) {
      const std::string name = module->logical_name(stage, item.key());
      if (!item.value().requires_grad()) {
        walk.frozen.push_back(name);
        continue;
      }
      const auto [entry, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), walk.trained.size());
      if (is_new) walk.trained.push_back({name, stage, item.value(), {}, {}, {}});
      if (!is_new) add_user(walk.trained[entry->second], stage, name);
    }
  }
  return walk;
}

void check_names(const std::vector<StageParameter>& parameters) {
  std::map<std::string, const StageParameter*> by_name;
  for (const StageParameter& parameter : parameters) {
    const auto [entry, is_new] = by_name.emplace(parameter.name, &parameter);
    if (is_new) continue;
    const StageParameter& other = *entry->second;
    refuse("a logical name must mean one tensor of a rank, got two of the name \"", parameter.name,
           "\": ", other.parameter.sizes(), " in stage ", other.stage, " and ", parameter.parameter.sizes(),
           " in stage ", parameter.stage, "; share the tensor, or let logical_name() name them apart");
  }
}

void check_main_grad(const StageParameter& parameter, const at::Tensor& main_grad) {
  if (!main_grad.defined() || !at::isFloatingType(main_grad.scalar_type()) || main_grad.layout() != at::kStrided) {
    refuse("main_grad of \"", parameter.name, "\" must be a dense floating tensor, got ",
           main_grad.defined() ? main_grad.toString() : "an undefined one", "; torch.float32 works");
  }
  if (main_grad.sizes() != parameter.parameter.sizes() || main_grad.device() != parameter.parameter.device()) {
    refuse("main_grad of \"", parameter.name, "\" must be ", parameter.parameter.sizes(), " on ",
           parameter.parameter.device(), " as the parameter is, got ", main_grad.sizes(), " on ", main_grad.device());
  }
}

void attach_main_grads(Walk& walk, const std::map<std::string, at::Tensor>& main_grads) {
  std::set<std::string> known(walk.frozen.begin(), walk.frozen.end());
  for (StageParameter& parameter : walk.trained) {
    known.insert(parameter.name);
    const auto given = main_grads.find(parameter.name);
    if (given == main_grads.end()) continue;
    check_main_grad(parameter, given->second);
    parameter.main_grad = given->second;
  }
  for (const auto& [name, buffer] : main_grads) {
    if (known.contains(name)) continue;
    const std::string nearest = nearest_name(name, {known.begin(), known.end()});
    refuse("main_grads must name parameters of this rank's stages, got \"", name, "\"",
           nearest.empty() ? "" : "; the nearest is \"" + nearest + "\"");
  }
}

// sum += gradient, in the dtype of `like`, which is also that of a new sum.
void add_to(at::Tensor& sum, const at::Tensor& gradient, const at::Tensor& like) {
  if (sum.defined()) {
    sum.add_(gradient.to(sum.scalar_type()));
    return;
  }
  const at::Tensor dense = gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
  sum = dense.to(like.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

std::vector<StageParameter> collect_parameters(const Stages& stages, const std::vector<int>& reduction_order,
                                               const std::map<std::string, at::Tensor>& main_grads) {
  Walk walk = walk_parameters(walk_order(stages, reduction_order));
  check_names(walk.trained);
  attach_main_grads(walk, main_grads);
  return std::move(walk.trained);
}

std::string full_name(const StageParameter& parameter) {
  return parameter.shard.empty() ? parameter.name : parameter.name + " (part " + parameter.shard + ")";
}

Gradients::Gradients(std::vector<StageParameter> parameters, bool set_aside)
    : parameters_(std::move(parameters)),
      set_aside_(set_aside),
      earlier_(parameters_.size()),
      step_(parameters_.size()) {}

std::vector<std::size_t> Gradients::indices_of(int stage) const {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].stage == stage) indices.push_back(i);
  }
  return indices;
}

void Gradients::begin_step() {
  check(!under_way_, "a step's gradients are finished before the next step begins");
  at::NoGradGuard no_grad;
  under_way_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) begin(i);
}

void Gradients::begin(std::size_t index) {
  at::Tensor main_grad = parameters_[index].main_grad;
  at::Tensor& grad = parameters_[index].parameter.mutable_grad();
  if (!main_grad.defined()) {
    if (set_aside_) earlier_[index] = std::exchange(grad, {});
    return;
  }
  if (grad.defined() && !grad.is_alias_of(main_grad)) add_to(main_grad, grad, main_grad);
  grad.reset();
}

void Gradients::collect(int stage) {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const StageParameter& parameter = parameters_[i];
    at::Tensor& grad = parameter.parameter.mutable_grad();
    if (!parameter.main_grad.defined() || !grad.defined() || !uses(parameter, stage)) continue;
    at::Tensor sink = parameter.main_grad;
    add_to(set_aside_ ? step_[i] : sink, grad, parameter.main_grad);
    grad.reset();
  }
}

at::Tensor& Gradients::step_gradient(std::size_t index) {
  check(set_aside_, "a step's own gradients are known where earlier ones are set aside");
  const StageParameter& parameter = parameters_.at(index);
  return parameter.main_grad.defined() ? step_[index] : parameter.parameter.mutable_grad();
}

void Gradients::finish_step() {
  check(under_way_, "a step is begun before it is finished");
  at::NoGradGuard no_grad;
  under_way_ = false;
  if (!set_aside_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) finish(i);
}

void Gradients::finish(std::size_t index) {
  at::Tensor own = std::exchange(step_gradient(index), {});
  at::Tensor sum = parameters_[index].main_grad;
  if (!sum.defined()) sum = std::exchange(earlier_[index], {});
  if (sum.defined() && own.defined()) sum.add_(own.to(sum.scalar_type()));
  if (!parameters_[index].main_grad.defined()) parameters_[index].parameter.mutable_grad() = sum.defined() ? sum : own;
}

std::size_t Gradients::bytes() const {
  std::size_t sum = 0;
  const auto add = [&sum](const at::Tensor& tensor) { sum += tensor.defined() ? tensor.nbytes() : 0; };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    add(parameters_[i].main_grad);
    add(parameters_[i].parameter.grad());
    add(earlier_[i]);
    add(step_[i]);
  }
  return sum;
}

at::Tensor Gradients::gradient(std::size_t index) const {
  const StageParameter& parameter = parameters_.at(index);
  return parameter.main_grad.defined() ? parameter.main_grad : parameter.parameter.grad();
}

}  // namespace dualpipe
