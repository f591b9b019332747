// The built-in 1F1B over several ranks against one process with plain autograd, written out here.
#include "examples/pretrain_gpt/builtin_1f1b.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "examples/pretrain_gpt/optimizer.h"
#include "examples/pretrain_gpt/trace_recorder.h"
#include "tests/pretrain_gpt/rank_threads.h"

namespace pretrain_gpt {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

Config test_config(int micro_batches) {
  Config config;
  config.num_layers = 5;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.ffn_hidden_size = 24;
  config.seq_length = 6;
  config.vocab_size = 13;
  config.params_dtype = "float64";
  config.micro_batch_size = 2;
  config.global_batch_size = 2 * micro_batches;
  return config;
}

// Masks differ between micro-batches, so that a mean of means would be wrong.
MicroBatch batch_of(const Config& config, int index) {
  const at::Tensor tokens =
      ((at::arange(config.micro_batch_size * config.seq_length) + 1) * (index + 3) % config.vocab_size)
          .view({config.micro_batch_size, config.seq_length});
  return {tokens, (tokens * 5 + 2) % config.vocab_size, tokens.remainder(index + 2).ne(0).to(at::kFloat)};
}

ReadMicroBatch reader(const Config& config) {
  return read_by([&config](int index) { return batch_of(config, index); });
}

struct Result {
  double loss = 0;
  double grad_norm = 0;
  Tensors gradients;
};

Result reference(const Config& config) {
  GptChunk model(config, whole_model(config));
  at::Tensor sum = at::zeros({}, at::kDouble);
  double weight = 0;
  for (int k = 0; k < config.num_microbatches(); ++k) {
    const MicroBatch batch = batch_of(config, k);
    sum = sum + token_loss_sum(model.forward(batch.tokens), batch.labels, batch.loss_mask);
    weight += token_loss_weight(batch.loss_mask);
  }
  (sum / weight).backward();
  Result result{sum.item<double>() / weight, 0, {}};
  double squares = 0;
  for (const auto& parameter : model.named_parameters()) {
    result.gradients[parameter.key()] = parameter.value().grad();
    squares += parameter.value().grad().square().sum().item<double>();
  }
  result.grad_norm = std::sqrt(squares);
  return result;
}

void expect_near(const Tensors& got, const Tensors& wanted, double bound) {
  for (const auto& [name, gradient] : got) {
    const at::Tensor& reference = wanted.at(name);
    EXPECT_LT((gradient - reference).norm().item<double>() / reference.norm().item<double>(), bound) << name;
  }
}

using Case = std::tuple<int, int, bool>;  // Ranks, micro-batches, untied.

class Builtin1F1BTest : public testing::TestWithParam<Case> {};

TEST_P(Builtin1F1BTest, EqualsOneProcess) {
  const auto [ranks, micro_batches, untied] = GetParam();
  Config config = test_config(micro_batches);
  config.untie_embeddings_and_output_weights = untied;
  const Result wanted = reference(config);
  std::mutex mutex;
  std::size_t names = 0;
  run_rank_threads(config, ranks, [&, ranks = ranks](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    const double evaluated = schedule->evaluate(reader(config));
    EXPECT_FALSE(schedule->chunks().at(0)->parameters().at(0).grad().defined());
    const double loss = schedule->train_step(reader(config));
    Tensors gradients;
    for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
      gradients[parameter.key()] = parameter.value().grad().clone();
    }
    const auto optimizer = make_optimizer(config, schedule->chunks());
    const StepOutcome outcome = schedule->optimizer_step(*optimizer, 0);
    const std::lock_guard lock(mutex);
    EXPECT_NEAR(loss, wanted.loss, 1e-12);
    EXPECT_NEAR(evaluated, wanted.loss, 1e-12);
    EXPECT_NEAR(outcome.grad_norm, wanted.grad_norm, 1e-12);
    EXPECT_FALSE(outcome.skipped);
    expect_near(gradients, wanted.gradients, 1e-10);
    names += gradients.size();
  });
  EXPECT_EQ(names, wanted.gradients.size() + (!untied && ranks > 1 ? 1 : 0));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Builtin1F1BTest,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(1, 2, 3, 8), testing::Bool()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return "P" + std::to_string(std::get<0>(info.param)) + "M" +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "Untied" : "Tied");
                         });

// Gradients of steps that follow each other add up, and are not scaled again.
TEST(FieldReport04, GradientsAccumulateOverSteps) {
  const Config config = test_config(4);
  const Result wanted = reference(config);
  run_rank_threads(config, 2, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    for (int step = 0; step < 3; ++step) {
      schedule->train_step(reader(config));
    }
    Tensors thirds;
    for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
      thirds[parameter.key()] = parameter.value().grad() / 3;
    }
    expect_near(thirds, wanted.gradients, 1e-10);
  });
}

TEST(FieldReport50, EvaluationAndTrainingTakeTurns) {
  const Config config = test_config(4);
  run_rank_threads(config, 2, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    torch::optim::SGD optimizer(schedule->chunks().at(0)->parameters(), 0.1);
    const double before = schedule->evaluate(reader(config));
    EXPECT_DOUBLE_EQ(schedule->train_step(reader(config)), before);
    schedule->optimizer_step(optimizer, 1.0);
    const double after = schedule->evaluate(reader(config));
    EXPECT_LT(after, before);
    optimizer.zero_grad();
    EXPECT_DOUBLE_EQ(schedule->train_step(reader(config)), after);
  });
}

TEST(FieldReport88, EveryStepUsesTheWeightsOfTheOneBefore) {
  const Config config = test_config(4);
  std::map<int, std::vector<double>> losses;
  for (const int ranks : {1, 4}) {
    std::mutex mutex;
    run_rank_threads(config, ranks, [&](const TrainContext& context) {
      const auto schedule = builtin_1f1b().make(context);
      torch::optim::SGD optimizer(schedule->chunks().at(0)->parameters(), 0.1);
      for (int step = 0; step < 10; ++step) {
        optimizer.zero_grad();
        const double loss = schedule->train_step(reader(config));
        schedule->optimizer_step(optimizer, 0);
        if (context.rank == 0) {
          losses[ranks].push_back(loss);
        }
      }
    });
  }
  EXPECT_THAT(losses.at(4), testing::Pointwise(testing::DoubleNear(1e-11), losses.at(1)));
  EXPECT_LT(losses.at(1).back(), losses.at(1).front());
}

TEST(Builtin1F1B, ClipsByTheNormOfTheWholeModel) {
  const Config config = test_config(4);
  const Result wanted = reference(config);
  const double limit = wanted.grad_norm / 4;
  run_rank_threads(config, 4, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    torch::optim::SGD optimizer(schedule->chunks().at(0)->parameters(), 0.0);
    schedule->train_step(reader(config));
    const StepOutcome outcome = schedule->optimizer_step(optimizer, limit);
    EXPECT_NEAR(outcome.grad_norm, wanted.grad_norm, 1e-12);
    for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
      const at::Tensor clipped = wanted.gradients.at(parameter.key()) * (limit / (wanted.grad_norm + 1e-6));
      EXPECT_TRUE(at::allclose(parameter.value().grad(), clipped, 1e-9, 1e-14)) << parameter.key();
    }
  });
}

TEST(Builtin1F1B, SkipsTheStepEverywhereIfOneGradientIsNotFinite) {
  const Config config = test_config(2);
  run_rank_threads(config, 4, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    torch::optim::SGD optimizer(schedule->chunks().at(0)->parameters(), 0.1);
    schedule->train_step(reader(config));
    const at::Tensor parameter = schedule->chunks().at(0)->parameters().back();
    const at::Tensor before = parameter.detach().clone();
    if (context.rank == 2) {
      parameter.grad().fill_(std::numeric_limits<double>::quiet_NaN());
    }
    const StepOutcome outcome = schedule->optimizer_step(optimizer, 1.0);
    EXPECT_TRUE(outcome.skipped);
    EXPECT_TRUE(std::isnan(outcome.grad_norm));
    EXPECT_TRUE(at::equal(parameter, before));
  });
}

// Of several copies of a parameter the norm counts one; each rank would step by its own.
TEST(Builtin1F1B, SkipsTheStepEverywhereIfACopyThatIsNotCountedIsNotFinite) {
  Config config = test_config(2);
  config.vocab_size = 14;
  config.tensor_model_parallel_size = 2;
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    run_rank_threads(config, 2, [&](const TrainContext& context) {
      const auto schedule = builtin_1f1b().make(context);
      torch::optim::SGD optimizer(schedule->chunks().at(0)->parameters(), 0.1);
      schedule->train_step(reader(config));
      const auto parameters = schedule->chunks().at(0)->named_parameters();
      const auto copied = std::find_if(parameters.begin(), parameters.end(), [](const auto& parameter) {
        return parameter.key().find("norm") != std::string::npos;
      });
      ASSERT_NE(copied, parameters.end());
      const at::Tensor parameter = copied->value(), before = parameter.detach().clone();
      if (context.parallel.rank() == 1) {
        parameter.grad().view({-1})[0].fill_(bad);
      }
      const StepOutcome outcome = schedule->optimizer_step(optimizer, 1.0);
      EXPECT_TRUE(outcome.skipped);
      EXPECT_TRUE(std::isnan(outcome.grad_norm));
      EXPECT_EQ(outcome.first_bad, "rank 1, stage 0, the sum of all micro-batches: the gradient of " + copied->key());
      EXPECT_TRUE(at::equal(parameter, before));
    });
  }
}

TEST(Builtin1F1B, RunsOneForwardAndOneBackwardInTurn) {
  Config config = test_config(4);
  config.record_actions = true;
  std::vector<std::string> rows(3);
  run_rank_threads(config, 3, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    schedule->train_step(reader(config));
    rows[static_cast<std::size_t>(context.rank)] = schedule->recorded_actions().value();
  });
  EXPECT_EQ(rows[0], "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3");
  EXPECT_EQ(rows[1], "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3");
  EXPECT_EQ(rows[2], "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3");
}

std::vector<std::string> names_of(const std::vector<TraceSpan>& spans) {
  std::vector<std::string> names;
  for (const TraceSpan& span : spans) {
    names.push_back(span.name);
  }
  return names;
}

// What a step's trace says of time and memory. Nothing is allocated in the memory that is counted here, so that what it
// shows is how much of it gradients took.
void expect_plausible(const StepTrace& trace, ForwardBackward& schedule) {
  double before = 0;
  for (const TraceSpan& action : trace.actions) {
    EXPECT_LE(before, action.start) << action.name;
    EXPECT_LT(action.start, action.end) << action.name;
    before = action.end;
  }
  ASSERT_EQ(trace.memory.size(), trace.actions.size() + 1);
  EXPECT_EQ(trace.memory.front().bytes, 0);
  EXPECT_EQ(trace.memory.back().bytes, -gradient_bytes(rank_parameters(schedule.chunks())));
}

TEST(Builtin1F1B, TracesWhatItRan) {
  Config config = test_config(4);
  config.record_timeline = 1;
  std::vector<StepTrace> traces(3);
  const double before = unix_seconds();
  run_rank_threads(config, 3, [&](const TrainContext& given) {
    TrainContext context = given;
    context.memory = std::make_shared<TensorMemory>();
    const auto schedule = builtin_1f1b().make(context);
    EXPECT_FALSE(schedule->recorded_actions());
    for (int step = 0; step < 2; ++step) {
      schedule->chunks().at(0)->zero_grad();
      schedule->train_step(reader(config));
    }
    schedule->evaluate(reader(config));
    const StepTrace trace = schedule->trace().value();
    expect_plausible(trace, *schedule);
    traces[static_cast<std::size_t>(context.rank)] = trace;
  });
  EXPECT_THAT(names_of(traces[0].actions),
              testing::ElementsAre("0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"));
  EXPECT_THAT(names_of(traces[2].actions),
              testing::ElementsAre("2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"));
  EXPECT_EQ(traces[0].peak_activations, 3);
  EXPECT_EQ(traces[1].peak_activations, 2);
  EXPECT_EQ(traces[2].peak_activations, 1);
  // One clock: a forward begins behind that of the rank before.
  EXPECT_GT(traces[0].began, before);
  EXPECT_LT(traces[0].began + traces[0].actions[0].start, traces[2].began + traces[2].actions[0].start);
}

// Of an action of the smallest model that is worth a look, configs/gpt_tiny.yaml on one rank.
TEST(Builtin1F1B, TracesAtLittleCost) {
  Config config = load_config("configs/gpt_tiny.yaml", {"global_batch_size=4", "record_timeline=1"});
  run_rank_threads(config, 1, [&](const TrainContext& given) {
    TrainContext context = given;
    context.memory = std::make_shared<TensorMemory>();
    const auto schedule = builtin_1f1b().make(context);
    schedule->train_step(reader(config));
    const StepTrace trace = schedule->trace().value();
    double action_seconds = trace.actions.front().end - trace.actions.front().start;
    for (const TraceSpan& action : trace.actions) {
      action_seconds = std::min(action_seconds, action.end - action.start);
    }
    const auto parameters = rank_parameters(schedule->chunks());
    TraceRecorder recorder([&] { return context.memory->in_use() - gradient_bytes(parameters); });
    double seconds = action_seconds;
    constexpr int kCalls = 100;
    for (int repeat = 0; repeat < 20; ++repeat) {
      recorder.begin();
      const double start = recorder.seconds();
      for (int call = 0; call < kCalls; ++call) {
        recorder.add_action("0F0", recorder.seconds());
      }
      seconds = std::min(seconds, (recorder.seconds() - start) / kCalls);
    }
    EXPECT_LT(seconds, 0.01 * action_seconds);
    RecordProperty("share", std::to_string(seconds / action_seconds));
  });
}

TEST(Builtin1F1B, HasNoTraceUnlessItIsWanted) {
  const Config config = test_config(2);
  run_rank_threads(config, 1, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    schedule->train_step(reader(config));
    EXPECT_FALSE(schedule->trace());
  });
}

TEST(Builtin1F1B, ReadsMicroBatchesOnTheFirstAndTheLastRankAlone) {
  const Config config = test_config(4);
  std::vector<int> reads(4);
  run_rank_threads(config, 4, [&](const TrainContext& context) {
    builtin_1f1b().make(context)->train_step(read_by([&](int index) {
      ++reads[static_cast<std::size_t>(context.rank)];
      return batch_of(config, index);
    }));
  });
  EXPECT_GT(reads[0], 0);
  EXPECT_EQ(reads[1], 0);
  EXPECT_EQ(reads[2], 0);
  EXPECT_GT(reads[3], 0);
}

TEST(Builtin1F1B, RefusesWhatItCannotDivide) {
  Config config = test_config(4);
  EXPECT_THROW(builtin_1f1b().validate(config, 6), UserError);
  config.virtual_pipeline_model_parallel_size = 2;
  try {
    builtin_1f1b().validate(config, 2);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "[builtin_1f1b] virtual_pipeline_model_parallel_size must be 1, got 2; leave it out");
  }
}

TEST(ScheduleRegistry, NamesTheNearestSchedule) {
  ScheduleRegistry registry;
  registry.add(builtin_1f1b());
  EXPECT_EQ(registry.find("builtin_1f1b").name, "builtin_1f1b");
  try {
    registry.find("builtin_1f1");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[pipeline_schedule] must be one of builtin_1f1b, got 'builtin_1f1'; did you mean 'builtin_1f1b'?");
  }
  EXPECT_THROW(registry.add(builtin_1f1b()), UserError);
}

TEST(ScheduleRegistry, AsksResolversForOtherNames) {
  ScheduleRegistry registry;
  registry.add_resolver([](const std::string& name) -> std::optional<ScheduleEntry> {
    if (name.ends_with(".csv")) {
      return ScheduleEntry{name, "a file", {}, {}};
    }
    return std::nullopt;
  });
  EXPECT_EQ(registry.find("my.csv").summary, "a file");
  EXPECT_THROW(registry.find("my.txt"), UserError);
}

}  // namespace
}  // namespace pretrain_gpt
