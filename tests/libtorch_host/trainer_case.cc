#include "tests/libtorch_host/trainer_case.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <sstream>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/extensions.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/token_loss.h"

namespace dualpipe {
namespace {

pretrain_gpt::ScheduleEntry entry_of(const std::string& schedule) {
  pretrain_gpt::ScheduleRegistry registry;
  registry.add(pretrain_gpt::builtin_1f1b());
  pretrain_gpt::register_extensions(registry);
  return registry.find(schedule);
}

pretrain_gpt::Environment environment_of(const Process& process) {
  pretrain_gpt::Environment environment;
  environment.rank = environment.local_rank = process.rank;
  environment.world_size = environment.local_world_size = process.size;
  return environment;
}

std::string bits_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  return std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
}

// The gradient of the elements of `whole` that have the values of `part`.
at::Tensor gradient_of_part(const at::Tensor& part, const at::Tensor& whole) {
  if (part.sizes() == whole.sizes()) return whole.grad();
  const at::Tensor values = whole.detach().flatten().contiguous();
  std::map<double, std::int64_t> place;
  for (std::int64_t i = 0; i < values.numel(); ++i) place[values.const_data_ptr<double>()[i]] = i;
  require(static_cast<std::int64_t>(place.size()) == values.numel(), "initial values are different from each other");
  const at::Tensor mine = part.detach().flatten().contiguous();
  at::Tensor places = at::empty({mine.numel()}, at::kLong);
  for (std::int64_t i = 0; i < mine.numel(); ++i) {
    places.mutable_data_ptr<std::int64_t>()[i] = place.at(mine.const_data_ptr<double>()[i]);
  }
  return whole.grad().flatten().index_select(0, places).view(part.sizes());
}

// Zeros where nothing reached the parameter (an expert without tokens).
at::Tensor gradient_or_zeros(const at::Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
}

}  // namespace

pretrain_gpt::Config small_config(const std::string& schedule) {
  pretrain_gpt::Config config;
  config.num_layers = 8;
  config.hidden_size = 16;
  config.ffn_hidden_size = 32;
  config.num_attention_heads = 2;
  config.seq_length = 12;
  config.vocab_size = 32;
  config.params_dtype = "float64";
  config.init_method_std = 0.2;
  config.micro_batch_size = 2;
  config.global_batch_size = 2 * 16;
  config.pipeline_schedule = schedule;
  return config;
}

pretrain_gpt::MicroBatch random_micro_batch(const pretrain_gpt::Config& config, int step, int index) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * step + index);
  const std::vector<std::int64_t> sizes{config.micro_batch_size, config.seq_length};
  pretrain_gpt::MicroBatch batch;
  batch.tokens = at::randint(0, config.vocab_size, sizes, generator, at::kLong);
  batch.labels = at::randint(0, config.vocab_size, sizes, generator, at::kLong);
  batch.loss_mask = (at::rand(sizes, generator, at::kFloat) > 0.2).to(at::kFloat);
  return batch;
}

WholeStep run_whole_step(pretrain_gpt::Config config) {
  config.tensor_model_parallel_size = config.expert_model_parallel_size = 1;
  config.expert_tensor_parallel_size = 1;
  config.pipeline_model_parallel_size = 1;
  config.sequence_parallel = false;
  config.recompute_granularity = "none";
  config.data_parallel_size = 1;
  WholeStep step{std::make_shared<pretrain_gpt::GptChunk>(config, pretrain_gpt::whole_model(config))};
  const int count = static_cast<int>(config.num_microbatches());
  double weight = 0;
  for (int k = 0; k < count; ++k) weight += random_micro_batch(config, 0, k).loss_mask.sum().item<double>();
  for (int k = 0; k < count; ++k) {
    const pretrain_gpt::MicroBatch batch = random_micro_batch(config, 0, k);
    const at::Tensor sum =
        pretrain_gpt::token_loss_sum(step.chunk->forward(batch.tokens, k), batch.labels, batch.loss_mask);
    (sum / weight).backward();
    step.loss += sum.item<double>() / weight;
  }
  return step;
}

double WholeStep::grad_norm() const {
  double sum = 0;
  for (const at::Tensor& parameter : chunk->parameters()) {
    sum += gradient_or_zeros(parameter).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void compare_gradients(const std::vector<pretrain_gpt::GptChunk*>& chunks, const pretrain_gpt::GptChunk& whole) {
  const auto wanted = whole.named_parameters();
  for (const pretrain_gpt::GptChunk* chunk : chunks) {
    for (const auto& item : chunk->named_parameters()) {
      const at::Tensor& parameter = wanted[item.key()];
      if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
      const at::Tensor reference = gradient_of_part(item.value(), parameter);
      const double error = (gradient_or_zeros(item.value()) - reference).norm().item<double>();
      require(error <= 1e-10 * reference.norm().item<double>(),
              fmt::format("gradient of {} differs by {}", item.key(), error));
    }
  }
}

void compare_copies(const pretrain_gpt::TrainContext& context, const std::string& key,
                    const std::vector<pretrain_gpt::GptChunk*>& chunks) {
  std::map<std::string, std::string> mine;
  for (const pretrain_gpt::GptChunk* chunk : chunks) {
    for (const auto& item : chunk->named_parameters()) {
      mine[item.key() + " " + context.parallel.part_of(chunk->layout_of(item.key()))] = bits_of(item.value());
    }
  }
  std::string text;
  for (const auto& [name, bits] : mine) text += fmt::format("{}={}\n", name, std::hash<std::string>{}(bits));
  std::map<std::string, std::string> seen;
  for (const std::string& of_rank :
       pretrain_gpt::gather_texts(*context.store, key, context.parallel.rank(), context.parallel.world_size(), text)) {
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) {
      const std::string name = line.substr(0, line.find('='));
      const auto [entry, is_new] = seen.emplace(name, line);
      require(is_new || entry->second == line, fmt::format("copies of {} differ", name));
    }
  }
}

TrainerRank::TrainerRank(const Process& process, pretrain_gpt::Config config, const std::string& key)
    : config_(std::move(config)) {
  pretrain_gpt::resolve(config_, process.size);
  const pretrain_gpt::ScheduleEntry entry = entry_of(config_.pipeline_schedule);
  entry.validate(config_, static_cast<int>(config_.pipeline_size()));
  const auto store = c10::make_intrusive<c10d::PrefixStore>(key, process.connect());
  groups_.emplace(pretrain_gpt::RankLayout(pretrain_gpt::parallel_sizes(config_, entry.mirrors(config_))),
                  environment_of(process), store, std::chrono::seconds(60));
  context_.emplace(pretrain_gpt::TrainContext{config_, *groups_, store, process.directory});
  schedule_ = entry.make(*context_);
}

// Under dualpipe the upper half of the micro-batches enters at the last rank, and nowhere else.
pretrain_gpt::ReadMicroBatch TrainerRank::reader(int step) const {
  const int data_rank = groups_->layout().data_rank(groups_->rank());
  const int data_size = static_cast<int>(config_.data_parallel_size);
  pretrain_gpt::ReadMicroBatch read = pretrain_gpt::read_by([this, step, data_rank, data_size](int k) {
    return random_micro_batch(config_, step, k * data_size + data_rank);
  });
  read.tokens = [this, tokens = read.tokens](int k) {
    const bool upper_half = config_.pipeline_schedule == "dualpipe" && k >= config_.num_microbatches() / 2;
    require(context_->rank == (upper_half ? context_->world_size - 1 : 0),
            fmt::format("tokens of micro-batch {} were read on rank {}", k, context_->rank));
    return tokens(k);
  };
  return read;
}

}  // namespace dualpipe
