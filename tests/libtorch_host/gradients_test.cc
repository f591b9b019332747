// One step of the trainer's model in float64 under every schedule beside plain autograd over the whole model, and the
// copies of a parameter on different ranks after several steps.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "adapters/libtorch_host/plugin_schedule.h"
#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/extensions.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "examples/pretrain_gpt/optimizer.h"
#include "tests/support/gloo_group.h"
#include "tests/support/run_processes.h"

namespace dualpipe {
namespace {

pretrain_gpt::Config config_of(const std::string& schedule, int processes, const std::string& tied) {
  pretrain_gpt::Config config;
  config.num_layers = 8;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.seq_length = 12;
  config.vocab_size = 32;
  config.params_dtype = "float64";
  config.init_method_std = 0.2;
  config.micro_batch_size = 2;
  config.global_batch_size = 2 * 16;
  config.pipeline_schedule = schedule;
  config.untie_embeddings_and_output_weights = tied == "untied";
  pretrain_gpt::resolve(config, processes);
  return config;
}

// Random tokens; every fifth label does not count.
pretrain_gpt::MicroBatch micro_batch(const pretrain_gpt::Config& config, int step, int index) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * step + index);
  const std::vector<std::int64_t> sizes{config.micro_batch_size, config.seq_length};
  pretrain_gpt::MicroBatch batch;
  batch.tokens = at::randint(0, config.vocab_size, sizes, generator, at::kLong);
  batch.labels = at::randint(0, config.vocab_size, sizes, generator, at::kLong);
  batch.loss_mask = (at::rand(sizes, generator, at::kFloat) > 0.2).to(at::kFloat);
  return batch;
}

// Plain autograd, all micro-batches in turn. Leaves gradients in the chunk; returns the loss.
double run_whole(pretrain_gpt::GptChunk& whole, const pretrain_gpt::Config& config) {
  double weight = 0;
  for (int k = 0; k < config.num_microbatches(); ++k)
    weight += micro_batch(config, 0, k).loss_mask.sum().item<double>();
  double loss = 0;
  for (int k = 0; k < config.num_microbatches(); ++k) {
    const pretrain_gpt::MicroBatch batch = micro_batch(config, 0, k);
    const at::Tensor mean =
        pretrain_gpt::token_loss_sum(whole.forward(batch.tokens), batch.labels, batch.loss_mask) / weight;
    mean.backward();
    loss += mean.item<double>();
  }
  return loss;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void compare_gradients(const std::vector<pretrain_gpt::GptChunk*>& chunks, const pretrain_gpt::GptChunk& whole) {
  const auto wanted = whole.named_parameters();
  for (const pretrain_gpt::GptChunk* chunk : chunks) {
    for (const auto& item : chunk->named_parameters()) {
      const at::Tensor reference = wanted[item.key()].grad();
      const double error = ((item.value().grad() - reference).norm() / reference.norm()).item<double>();
      require(error <= 1e-10, fmt::format("gradient of {} differs by {}", item.key(), error));
    }
  }
}

// Under dualpipe the upper half of the micro-batches enters at the last rank, and nowhere else.
void require_entry(const Process& process, const pretrain_gpt::Config& config, int index) {
  const bool upper_half = config.pipeline_schedule == "dualpipe" && index >= config.num_microbatches() / 2;
  require(process.rank == (upper_half ? process.size - 1 : 0),
          fmt::format("tokens of micro-batch {} were read on rank {}", index, process.rank));
}

pretrain_gpt::ReadMicroBatch reader(const pretrain_gpt::Config& config, int step, const Process& process) {
  pretrain_gpt::ReadMicroBatch read =
      pretrain_gpt::read_by([&config, step](int k) { return micro_batch(config, step, k); });
  read.tokens = [&config, &process, tokens = read.tokens](int k) {
    require_entry(process, config, k);
    return tokens(k);
  };
  return read;
}

std::string bits_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  return std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
}

// Every name means the same bits on every rank that has it.
void compare_copies(c10d::Store& store, const std::string& key, const Process& process,
                    const std::vector<pretrain_gpt::GptChunk*>& chunks) {
  std::map<std::string, std::string> mine;
  for (const pretrain_gpt::GptChunk* chunk : chunks) {
    for (const auto& item : chunk->named_parameters()) mine[item.key()] = bits_of(item.value());
  }
  std::string text;
  for (const auto& [name, bits] : mine) text += fmt::format("{}={}\n", name, std::hash<std::string>{}(bits));
  std::map<std::string, std::string> seen;
  for (const std::string& of_rank : pretrain_gpt::gather_texts(store, key, process.rank, process.size, text)) {
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) {
      const std::string name = line.substr(0, line.find('='));
      const auto [entry, is_new] = seen.emplace(name, line);
      require(is_new || entry->second == line, fmt::format("copies of {} differ", name));
    }
  }
}

std::unique_ptr<pretrain_gpt::ForwardBackward> make(const std::string& schedule,
                                                    const pretrain_gpt::TrainContext& context) {
  pretrain_gpt::ScheduleRegistry registry;
  registry.add(pretrain_gpt::builtin_1f1b());
  pretrain_gpt::register_extensions(registry);
  const pretrain_gpt::ScheduleEntry entry = registry.find(schedule);
  entry.validate(context.config, context.world_size);
  return entry.make(context);
}

DUALPIPE_PROCESS_BODY(gradients) {
  const auto store = process.connect();
  const pretrain_gpt::Config config = config_of(process.args.at(0), process.size, process.args.at(1));
  const auto group = make_gloo_group(store, process.rank, process.size, std::chrono::seconds(60));
  const pretrain_gpt::TrainContext context{config, process.rank, process.size, group, store, process.directory};
  const auto schedule = make(process.args.at(0), context);

  pretrain_gpt::GptChunk whole(config, pretrain_gpt::whole_model(config));
  const double wanted = run_whole(whole, config);
  const double loss = schedule->train_step(reader(config, 0, process));
  require(std::abs(loss - wanted) <= 1e-12 * wanted, fmt::format("loss {} instead of {}", loss, wanted));
  compare_gradients(schedule->chunks(), whole);

  const auto optimizer = pretrain_gpt::make_optimizer(config, schedule->chunks());
  for (int step = 0; step < 3; ++step) {
    if (step > 0) schedule->train_step(reader(config, step, process));
    const auto outcome = schedule->optimizer_step(*optimizer, 0.5);
    require(!outcome.skipped && outcome.grad_norm > 0, "a step was skipped");
    optimizer->zero_grad();
    compare_copies(*store, fmt::format("copies {}", step), process, schedule->chunks());
  }
}

struct Case {
  std::string schedule;
  int processes;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.schedule << " in " << c.processes << " processes"; }

class TrainerGradients : public testing::TestWithParam<Case> {};

TEST_P(TrainerGradients, AreThoseOfOneProcessAndCopiesStayEqual) {
  for (const std::string tied : {"tied", "untied"}) {
    for (const Outcome& outcome : run_processes(GetParam().processes, "gradients", {GetParam().schedule, tied})) {
      EXPECT_EQ(outcome.exit_code, 0) << tied << ": " << outcome.to_string();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, TrainerGradients,
                         testing::Values(Case{"builtin_1f1b", 2}, Case{"builtin_1f1b", 4}, Case{"1f1b", 2},
                                         Case{"1f1b", 4}, Case{"interleaved_1f1b", 2}, Case{"interleaved_1f1b", 4},
                                         Case{"zb1p", 2}, Case{"zb1p", 4}, Case{"dualpipe", 2}, Case{"dualpipe", 4},
                                         Case{"dualpipe", 6}, Case{"dualpipe", 8}, Case{"dualpipev", 2},
                                         Case{"dualpipev", 4}));

}  // namespace
}  // namespace dualpipe
