#include "examples/pretrain_gpt/checkpoint/held_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/rank_parameters.h"

namespace pretrain_gpt {
namespace {

const std::string kState = "optimizer.state.";

Division division_of(const ParameterLayout& layout, const ProcessGroups& groups) {
  if (!layout.is_tensor_shard) {
    return {};
  }
  const RankLayout& ranks = groups.layout();
  const int index = layout.is_expert ? ranks.expert_tensor_rank(groups.rank()) : ranks.tensor_rank(groups.rank());
  const int count = layout.is_expert ? ranks.sizes().expert_tensor : ranks.sizes().tensor;
  return {layout.dimension, layout.blocks, index, count};
}

// An expert's number is in its name already.
std::string part_of(const ParameterLayout& layout, const ProcessGroups& groups) {
  return layout.is_tensor_shard ? fmt::format("tp{}", division_of(layout, groups).index) : "";
}

// The lowest of the ranks that divide this copy's state among them; this rank where it has all of it.
int state_set(const ParameterState& state, const ParameterLayout& layout, const ProcessGroups& groups) {
  const GroupKind kind = layout.is_expert ? GroupKind::kExpertData : GroupKind::kData;
  return state.count == state.parameter.numel() ? groups.rank() : groups.layout().group_of(kind, groups.rank()).front();
}

// A piece per block that `box` of this rank's part of a tensor reaches into.
void add_pieces(std::vector<HeldPiece>& pieces, const HeldPiece& like, const Box& box, const Shape& part,
                const Division& division) {
  visit_blocks(box, part, division, [&](std::int64_t offset, std::int64_t size, const Box& place) {
    HeldPiece piece = like;
    piece.place.shape = whole_shape(part, division);
    piece.place.box = place;
    if (division.count > 1) {
      piece.view = like.view.narrow(division.dimension, offset, size);
    }
    pieces.push_back(std::move(piece));
  });
}

HeldPiece piece_of(const std::string& name, const at::Tensor& view, bool is_weight, const std::string& part, int set) {
  return {{name, dtype_name(view.scalar_type()), {}, {}, part, set}, view, is_weight};
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  static const std::map<at::ScalarType, std::string> names{
      {at::kFloat, "F32"}, {at::kDouble, "F64"}, {at::kBFloat16, "BF16"}, {at::kLong, "I64"}};
  const auto found = names.find(dtype);
  if (found == names.end()) {
    throw CheckpointError("checkpoint", fmt::format("a tensor must be float32, float64, bfloat16 or int64, got {}",
                                                    c10::toString(dtype)));
  }
  return found->second;
}

HeldState::HeldState(const std::vector<GptChunk*>& chunks, torch::optim::Optimizer& optimizer,
                     const ProcessGroups& groups) {
  std::map<const void*, std::vector<ParameterState>> states;
  for (ParameterState& state : parameter_states(optimizer)) {
    states[state.parameter.unsafeGetTensorImpl()].push_back(std::move(state));
  }
  for (const RankParameter& parameter : rank_parameters(chunks)) {
    add_parameter(parameter, groups);
    for (const ParameterState& state : states[parameter.parameter.unsafeGetTensorImpl()]) {
      add_state(parameter, state, groups);
    }
  }
  for (const GptChunk* chunk : chunks) {
    add_buffers(*chunk, groups);
  }
}

void HeldState::add_parameter(const RankParameter& parameter, const ProcessGroups& groups) {
  const at::Tensor view = parameter.parameter.detach();
  add_pieces(pieces_, piece_of(parameter.name, view, true, part_of(parameter.layout, groups), groups.rank()),
             whole_box(view.sizes().vec()), view.sizes().vec(), division_of(parameter.layout, groups));
}

void HeldState::add_state(const RankParameter& parameter, const ParameterState& state, const ProcessGroups& groups) {
  const int set = state_set(state, parameter.layout, groups);
  const Shape part = parameter.parameter.sizes().vec();
  const Division division = division_of(parameter.layout, groups);
  const std::string part_name = part_of(parameter.layout, groups);
  const auto add = [&](const std::string& name, const at::Tensor& row, bool is_weight, bool is_copy) {
    for (const Run& run : runs_of(part, state.from, state.count)) {
      HeldPiece piece = piece_of(name, row.narrow(0, run.at, *count_elements(run.box.size)).view(run.box.size),
                                 is_weight, part_name, set);
      piece.is_copy = is_copy;
      add_pieces(pieces_, piece, run.box, part, division);
    }
  };
  add(kState + "exp_avg." + parameter.name, state.exp_avg, false, false);
  add(kState + "exp_avg_sq." + parameter.name, state.exp_avg_sq, false, false);
  if (state.master.defined()) {
    const bool is_copy = state.master.scalar_type() == parameter.parameter.scalar_type();
    add(is_copy ? parameter.name : kState + "fp32_param." + parameter.name, state.master, true, is_copy);
  }
  const at::Tensor count = at::zeros({}, at::kLong);
  steps_.push_back({parameter.name, state.adamw, count});
  HeldPiece steps = piece_of(kState + "step." + parameter.name, count, false, "", groups.rank());
  pieces_.push_back(std::move(steps));
}

// The same on all ranks that hold the layer.
void HeldState::add_buffers(const GptChunk& chunk, const ProcessGroups& groups) {
  for (const auto& buffer : chunk.named_buffers()) {
    const Shape shape = buffer.value().sizes().vec();
    add_pieces(pieces_, piece_of(buffer.key(), buffer.value(), true, "", groups.rank()), whole_box(shape), shape, {});
  }
}

void HeldState::take_steps() {
  for (const Steps& steps : steps_) {
    steps.count.fill_(steps.adamw->step());
  }
}

void HeldState::give_steps() {
  std::map<const void*, const Steps*> given;
  for (const Steps& steps : steps_) {
    const auto count = steps.count.item<std::int64_t>();
    const auto [first, is_new] = given.emplace(steps.adamw, &steps);
    if (!is_new && first->second->count.item<std::int64_t>() != count) {
      throw CheckpointError(
          "checkpoint", fmt::format("{} must have taken the {} steps of {}, which is stepped with it, got {}; for "
                                    "example use_distributed_optimizer: false",
                                    steps.name, first->second->count.item<std::int64_t>(), first->second->name, count));
    }
    steps.adamw->step(count);
  }
}

}  // namespace pretrain_gpt
