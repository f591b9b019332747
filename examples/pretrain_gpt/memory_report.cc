#include "examples/pretrain_gpt/memory_report.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/model/random_stream.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "examples/pretrain_gpt/optimizer.h"

namespace pretrain_gpt {
namespace {

std::int64_t size_of(const Group& group) { return group ? group->getSize() : 1; }

at::Tensor probe_input(const TrainContext& context, const Chunk& chunk) {
  const Config& config = context.config;
  if (chunk.has_embedding) {
    return at::arange(config.micro_batch_size * config.seq_length)
        .remainder(config.vocab_size)
        .view({config.micro_batch_size, config.seq_length});
  }
  const auto sizes = boundary_sizes(config, context.parallel.model_parallel(config.sequence_parallel));
  // All different, so that experts share the tokens.
  const at::Tensor hidden = at::empty(sizes, at::kDouble).normal_(0, 1, random_stream(config.seed, "memory probe"));
  return hidden.to(params_dtype(config), /*non_blocking=*/false, /*copy=*/true).requires_grad_();
}

}  // namespace

MemoryReport::MemoryReport(const TrainContext& context, ForwardBackward& schedule, TensorMemory& memory)
    : context_(context), schedule_(schedule), memory_(memory) {
  for (GptChunk* chunk : schedule.chunks()) {
    kept_.push_back(kept_by_forward(*chunk));
  }
}

// Its input is kept too; its output is not, once it is sent.
std::int64_t MemoryReport::kept_by_forward(GptChunk& chunk) {
  const std::int64_t before = memory_.in_use();
  const at::Tensor input = probe_input(context_, chunk.chunk());
  at::Tensor output = chunk.forward(input);
  if (chunk.chunk().has_head) {
    const Config& config = context_.config;
    const at::Tensor labels = at::zeros({config.micro_batch_size, config.seq_length}, at::kLong);
    output =
        token_loss_sum(output, labels, at::ones_like(labels, at::kFloat), {context_.parallel.of(GroupKind::kTensor)});
  }
  const torch::autograd::Edge graph = torch::autograd::impl::gradient_edge(output);
  output = at::Tensor();
  return memory_.in_use() - before;
}

void MemoryReport::end_step() {
  step_activations_ = memory_.peak() - memory_.in_use();
  peak_activations_ = std::max(peak_activations_, step_activations_);
}

StateBytes MemoryReport::state(const torch::optim::Optimizer& optimizer) const {
  const auto parameters = rank_parameters(schedule_.chunks(), schedule_.main_gradients());
  StateBytes measured{0, gradient_bytes(parameters), state_bytes(optimizer)};
  for (const RankParameter& parameter : parameters) {
    measured.parameters += static_cast<std::int64_t>(parameter.parameter.nbytes());
  }
  return measured;
}

std::int64_t MemoryReport::expected_bytes() const {
  const StateBytes state = formula();
  return state.parameters + state.gradients + state.optimizer_state + kept_activations();
}

std::string MemoryReport::line(const torch::optim::Optimizer& optimizer) const {
  const StateBytes measured = state(optimizer), wanted = formula();
  return fmt::format(
      "rank {}: parameters {} B (formula {}), gradients {} B (formula {}), optimizer state {} B (formula {}), {}",
      context_.parallel.rank(), measured.parameters, wanted.parameters, measured.gradients, wanted.gradients,
      measured.optimizer_state, wanted.optimizer_state, activations());
}

std::string MemoryReport::activations() const {
  std::string terms;
  const std::vector<std::int64_t> micro_batches = schedule_.peak_micro_batches();
  for (std::size_t chunk = 0; chunk < std::min(micro_batches.size(), kept_.size()); ++chunk) {
    terms += fmt::format("{}{} x {}", terms.empty() ? "" : " + ", micro_batches[chunk], kept_[chunk]);
  }
  return fmt::format("peak activations {} B (formula {})", peak_activations_,
                     terms.empty() ? "unknown to the schedule" : fmt::format("{} = {}", terms, kept_activations()));
}

std::int64_t MemoryReport::kept_activations() const {
  const std::vector<std::int64_t> micro_batches = schedule_.peak_micro_batches();
  std::int64_t sum = 0;
  for (std::size_t chunk = 0; chunk < std::min(micro_batches.size(), kept_.size()); ++chunk) {
    sum += micro_batches[chunk] * kept_[chunk];
  }
  return sum;
}

StateBytes MemoryReport::formula() const {
  std::vector<Chunk> chunks;
  for (const GptChunk* chunk : schedule_.chunks()) {
    chunks.push_back(chunk->chunk());
  }
  const ProcessGroups& groups = context_.parallel;
  return formula_bytes(context_.config, count_elements(context_.config, chunks),
                       {size_of(groups.of(GroupKind::kData)), size_of(groups.of(GroupKind::kExpertData))});
}

}  // namespace pretrain_gpt
