#include "examples/pretrain_gpt/distributed_optimizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "examples/pretrain_gpt/collective.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

using torch::optim::AdamWOptions;

std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const std::vector<DistributedOptimizer::Part>& parts) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const DistributedOptimizer::Part& part : parts) {
    groups.emplace_back(part.parameters, std::make_unique<AdamWOptions>(part.options));
  }
  return groups;
}

int size_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) { return group ? group->getSize() : 1; }
int rank_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) { return group ? group->getRank() : 0; }

std::int64_t elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    sum += tensor.numel();
  }
  return sum;
}

at::ScalarType dtype_of(const DistributedOptimizer::Part& part) {
  return part.parameters.empty() ? at::kFloat : part.parameters.front().scalar_type();
}

at::ScalarType master_dtype(const DistributedOptimizer::Part& part) {
  return dtype_of(part) == at::kDouble ? at::kDouble : at::kFloat;
}

void check(const DistributedOptimizer::Part& part) {
  if (part.parameters.size() != part.main_gradients.size()) {
    throw UserError("distributed optimizer",
                    fmt::format("a part must have a main gradient, defined or not, for each of its {} parameters, got "
                                "{}; for example undefined ones",
                                part.parameters.size(), part.main_gradients.size()));
  }
  for (const at::Tensor& parameter : part.parameters) {
    if (parameter.scalar_type() != dtype_of(part)) {
      throw UserError("distributed optimizer",
                      fmt::format("a part must have parameters of one dtype, got {} and {}; "
                                  "for example two parts",
                                  c10::toString(dtype_of(part)), c10::toString(parameter.scalar_type())));
    }
  }
}

// Calls visit(index, from, at, count) for each tensor that elements [begin, begin + size) of the row of tensors touch:
// its elements [from, from + count) lie at [at, at + count) of that range.
using VisitPiece = std::function<void(std::size_t index, std::int64_t from, std::int64_t at, std::int64_t count)>;

void visit_pieces(const std::vector<at::Tensor>& tensors, std::int64_t begin, std::int64_t size,
                  const VisitPiece& visit) {
  std::int64_t place = 0;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    const std::int64_t end = place + tensors[index].numel();
    const std::int64_t first = std::max(place, begin), last = std::min(end, begin + size);
    if (first < last) {
      visit(index, first - place, first - begin, last - first);
    }
    place = end;
  }
}

// Elements [begin, begin + size) of what `tensor_of(index)` gives, zeros where that is undefined or at its end.
at::Tensor slice_of(const std::vector<at::Tensor>& shapes, const std::function<at::Tensor(std::size_t)>& tensor_of,
                    std::int64_t begin, std::int64_t size, at::ScalarType dtype) {
  at::Tensor slice = at::zeros({size}, dtype);
  visit_pieces(shapes, begin, size, [&](std::size_t index, std::int64_t from, std::int64_t at, std::int64_t count) {
    if (const at::Tensor tensor = tensor_of(index); tensor.defined()) {
      slice.narrow(0, at, count).copy_(tensor.reshape({-1}).narrow(0, from, count));
    }
  });
  return slice;
}

void scatter_into(const std::vector<at::Tensor>& tensors, const at::Tensor& row) {
  visit_pieces(tensors, 0, row.numel(), [&](std::size_t index, std::int64_t, std::int64_t at, std::int64_t count) {
    tensors[index].copy_(row.narrow(0, at, count).view(tensors[index].sizes()));
  });
}

// As bytes, which every backend moves.
at::Tensor gather_row(c10d::ProcessGroup& group, const at::Tensor& mine) {
  at::Tensor row = at::empty({mine.numel() * group.getSize()}, mine.options());
  at::Tensor to = row.view(at::kByte), from = mine.view(at::kByte);
  wait_for(*group.all_gather_single(to, from), "the gathering of new parameters");
  return row;
}

std::string key(std::size_t index) { return fmt::format("part{}", index); }

}  // namespace

DistributedOptimizer::DistributedOptimizer(std::vector<Part> parts)
    : Optimizer(parameter_groups(parts), std::make_unique<AdamWOptions>()) {
  for (Part& part : parts) {
    check(part);
    slices_.push_back(cut(std::move(part)));
  }
}

DistributedOptimizer::Slice DistributedOptimizer::cut(Part part) {
  const at::NoGradGuard no_grad;
  Slice slice;
  const int ranks = size_of(part.group);
  slice.size = (elements(part.parameters) + ranks - 1) / ranks;
  slice.begin = rank_of(part.group) * slice.size;
  slice.master = slice_of(
      part.parameters, [&](std::size_t index) { return part.parameters[index]; }, slice.begin, slice.size,
      master_dtype(part));
  slice.adamw = std::make_unique<torch::optim::AdamW>(std::vector<at::Tensor>{slice.master}, part.options);
  slice.part = std::move(part);
  return slice;
}

at::Tensor DistributedOptimizer::step(LossClosure closure) {
  if (closure) {
    throw UserError("distributed optimizer", "step() must be called without a closure; evaluate the loss before it");
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const auto& options = static_cast<const AdamWOptions&>(param_groups()[i].options());
    static_cast<AdamWOptions&>(slices_[i].adamw->param_groups()[0].options()) = options;
    step(slices_[i]);
    gather(slices_[i]);
  }
  return {};
}

void DistributedOptimizer::step(Slice& slice) {
  const Part& part = slice.part;
  const auto gradient_of = [&](std::size_t index) {
    const at::Tensor& main_gradient = part.main_gradients[index];
    return main_gradient.defined() ? main_gradient : part.parameters[index].grad();
  };
  slice.master.mutable_grad() =
      slice_of(part.parameters, gradient_of, slice.begin, slice.size, slice.master.scalar_type());
  slice.adamw->step();
  slice.master.mutable_grad() = at::Tensor();
}

void DistributedOptimizer::gather(const Slice& slice) {
  if (slice.size == 0) {
    return;
  }
  const at::Tensor mine = slice.master.to(dtype_of(slice.part));
  scatter_into(slice.part.parameters, size_of(slice.part.group) > 1 ? gather_row(*slice.part.group, mine) : mine);
}

void DistributedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    torch::serialize::OutputArchive part(archive.compilation_unit());
    slices_[i].adamw->save(part);
    part.write("master", slices_[i].master, /*is_buffer=*/true);
    archive.write(key(i), part);
  }
}

void DistributedOptimizer::load(torch::serialize::InputArchive& archive) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    torch::serialize::InputArchive part;
    archive.read(key(i), part);
    slices_[i].adamw->load(part);
    at::Tensor master;
    part.read("master", master, /*is_buffer=*/true);
    slices_[i].master.copy_(master);
  }
}

std::vector<ParameterState> DistributedOptimizer::parameter_states() {
  std::vector<ParameterState> states;
  for (Slice& slice : slices_) {
    torch::optim::AdamWParamState& adamw = adamw_state(*slice.adamw, slice.master);
    const auto part = [](const at::Tensor& row, std::int64_t at, std::int64_t count) {
      return row.narrow(0, at, count);
    };
    visit_pieces(slice.part.parameters, slice.begin, slice.size,
                 [&](std::size_t index, std::int64_t from, std::int64_t at, std::int64_t count) {
                   states.push_back({slice.part.parameters[index], from, count, part(slice.master, at, count),
                                     part(adamw.exp_avg(), at, count), part(adamw.exp_avg_sq(), at, count), &adamw});
                 });
  }
  return states;
}

std::int64_t DistributedOptimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const Slice& slice : slices_) {
    bytes += 3 * static_cast<std::int64_t>(slice.master.nbytes());
  }
  return bytes;
}

}  // namespace pretrain_gpt
