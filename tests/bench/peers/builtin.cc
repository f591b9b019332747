#include "tests/bench/peers/builtin.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <vector>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "tests/bench/support/serve.h"

namespace dualpipe::bench {
namespace {

// A layer per rank, activations of 16 x 16 floats.
pretrain_gpt::Config small_config(int ranks, int num_microbatches) {
  pretrain_gpt::Config config;
  config.num_layers = ranks;
  config.hidden_size = config.seq_length = 16;
  config.num_attention_heads = 2;
  config.ffn_hidden_size = 16;
  config.vocab_size = 16;
  config.untie_embeddings_and_output_weights = true;
  config.micro_batch_size = 1;
  config.global_batch_size = num_microbatches;
  resolve(config, ranks);
  return config;
}

pretrain_gpt::MicroBatch batch_of(const pretrain_gpt::Config& config) {
  const at::Tensor tokens = at::zeros({config.micro_batch_size, config.seq_length}, at::kLong);
  return {tokens, tokens, at::ones({config.micro_batch_size, config.seq_length})};
}

}  // namespace

Builtin::Builtin(const Meeting& meeting, int num_microbatches) : config_(small_config(meeting.size, num_microbatches)) {
  pretrain_gpt::Environment environment;
  environment.rank = meeting.rank;
  environment.world_size = environment.local_world_size = meeting.size;
  groups_ = std::make_unique<pretrain_gpt::ProcessGroups>(
      pretrain_gpt::RankLayout(parallel_sizes(config_, /*mirrored=*/false)), environment, meeting.store,
      std::chrono::minutes(5));
  pretrain_gpt::TrainContext context{config_, *groups_, meeting.store, "."};
  context.run = [this](char kind, const std::function<void()>& compute) { run(kind, compute); };
  schedule_ = pretrain_gpt::builtin_1f1b().make(context);
  read_ = pretrain_gpt::read_by([batch = batch_of(config_)](int) { return batch; });
}

void Builtin::run(char kind, const std::function<void()>& compute) {
  const Pace& pace = sleeper_.pace;
  const Milliseconds length = kind == 'F' ? pace.forward : pace.backward_input + pace.backward_weight;
  const Deadline deadline(length);
  compute();
  sleeper_.sleep(deadline, length);
}

nlohmann::json Builtin::answer(const nlohmann::json& request) {
  const auto pace = request.at("pace_ms").get<std::vector<double>>();
  sleeper_.pace = {Milliseconds(pace.at(0)), Milliseconds(pace.at(1)), Milliseconds(pace.at(2)), {}};
  sleeper_.rehearses = !request.contains("at");
  if (sleeper_.rehearses) {
    schedule_->train_step(read_);
    return {{"ready", true}};
  }
  sleeper_.overshoot.clear();
  const int steps = request.value("steps", 1);
  nlohmann::json answer = timed(request, [&] {
    for (int step = 0; step < steps; ++step) schedule_->train_step(read_);
  });
  const std::size_t actions = 2 * config_.num_microbatches() * steps;
  answer.update({{"actions", actions}, {"operations", actions}, {"overshoot", describe(sleeper_.overshoot)}});
  return answer;
}

}  // namespace dualpipe::bench
