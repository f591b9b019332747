// The log of a rank's last actions, and where what is not finite began.
#include "plugin/runtime/ring_log.h"

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plugin/runtime/device_claim.h"
#include "plugin/runtime/non_finite.h"
#include "plugin/runtime/optimizer_hook.h"
#include "tests/schedule/refusal.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe {
namespace {

using ::testing::HasSubstr;

TEST(RingLog, IsAtTheInnermostActionThatIsNotDone) {
  RingLog log(1, 4, {2, 3});
  EXPECT_EQ(log.standing().action, "");
  const RingLog::Id compute = log.begin(RingKind::kCompute, "1F0");
  const RingLog::Id message = log.post(RingKind::kReceive, "1RECV_F1", 0);
  EXPECT_EQ(log.standing().action, "1F0");
  EXPECT_FALSE(log.standing().waits);
  log.set_bytes(message, 64);
  log.start(message);
  EXPECT_EQ(log.standing().action, "1RECV_F1");
  EXPECT_TRUE(log.standing().waits);
  EXPECT_EQ(log.standing().peer, 2);  // The run's number.
  const std::uint64_t changes = log.standing().changes;
  log.done(message);
  EXPECT_GT(log.standing().changes, changes);
  log.done(compute);
  EXPECT_EQ(log.standing().action, "");
  EXPECT_EQ(log.entries()[1].bytes, 64);
}

TEST(RingLog, ForgetsTheOldest) {
  RingLog log(0, 1, {}, 2);
  const RingLog::Id first = log.begin(RingKind::kCompute, "0F0");
  log.begin(RingKind::kCompute, "0F1");
  log.begin(RingKind::kCompute, "0F2");
  log.done(first);
  ASSERT_EQ(log.entries().size(), 2U);
  EXPECT_EQ(log.entries()[0].action, "0F1");
}

TEST(RingLog, LeavesWhatThrewAtHand) {
  RingLog log(0, 1);
  { const RingScope scope(log, RingKind::kCompute, "0F0"); }
  try {
    const RingScope scope(log, RingKind::kCompute, "0F1");
    throw std::runtime_error("no such expert");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(log.standing().action, "0F1");
  }
}

TEST(RingLog, WritesALinePerEntry) {
  const TemporaryFolder folder;
  RingLog log(1, 2);
  log.done(log.begin(RingKind::kCompute, "1F0"));
  log.post(RingKind::kSend, "1SEND_B0", 0, 64);
  ASSERT_TRUE(log.write(folder.path(), failure_json(0, "0B0", "no such \"expert\"\n")));
  std::istringstream lines(read_text(folder.file("ring_rank1.jsonl")));
  std::vector<nlohmann::json> read;
  for (std::string line; std::getline(lines, line);) read.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[0]["format"], "dualpipe-ring");
  EXPECT_EQ(read[0]["failed_rank"], 0);
  EXPECT_EQ(read[0]["failed_place"], "0B0");
  EXPECT_EQ(read[0]["failure"], "no such \"expert\"\n");
  EXPECT_EQ(read[1]["action"], "1F0");
  EXPECT_LE(read[1]["posted"].get<double>(), read[1]["done"].get<double>());
  EXPECT_EQ(read[2]["peer"], 0);
  EXPECT_FALSE(read[2].contains("done"));
  EXPECT_FALSE(log.write(folder.file("none"), ""));
}

// --- devices

TEST(FieldReport68, RefusesTwoRanksOnOneDevice) {
  const DeviceClaim first{"a", 0, 1, ""};
  EXPECT_EQ(decode_claim(encode(first)), first);
  EXPECT_EQ(
      refusal_of([&] {
        check_claims({first, first});
      }),
      "[nccl] rank 1 wants device 0 but only 1 is visible, and rank 0 has it; start at most one rank per device, and "
      "let CUDA_VISIBLE_DEVICES show a rank the devices of all ranks of its machine");
  EXPECT_EQ(refusal_of([&] {
              check_claims({first, {"b", 0, 1, ""}, {"a", 1, 2, ""}, {"a", 0, 1, "1"}});
            }),
            "nothing was thrown");
}

TEST(FieldReport68, RefusesADeviceThatIsNotThere) {
  EXPECT_EQ(device_of(5, 1, 2), 1);
  EXPECT_EQ(refusal_of([] { device_of(5, 1, 1); }),
            "[device] rank 5 wants device 1 but only 1 is visible; start at most one rank per device, and let "
            "CUDA_VISIBLE_DEVICES show a rank the devices of all ranks of its machine");
  EXPECT_EQ(refusal_of([] {
              check_claims({{"a", 0, 1, ""}, {"a", 1, 1, ""}});
            }),
            "[device] rank 1 wants device 1 but only 1 is visible; start at most one rank per device, and let "
            "CUDA_VISIBLE_DEVICES show a rank the devices of all ranks of its machine");
}

// --- what is not finite

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(NonFinite, KnowsNanAndInfinityInAnyDtype) {
  EXPECT_TRUE(is_finite(torch::ones({3})));
  EXPECT_TRUE(is_finite(torch::ones({0})));
  EXPECT_TRUE(is_finite(at::Tensor()));
  EXPECT_TRUE(is_finite(torch::ones({3}, torch::kLong)));
  EXPECT_FALSE(is_finite(torch::tensor({1.F, kNan})));
  EXPECT_FALSE(is_finite(torch::tensor({-kInfinity, 1.F})));
  EXPECT_FALSE(is_finite(torch::tensor({1.F, kInfinity}).to(torch::kBFloat16)));
}

TEST(NonFinite, TheFirstIsByTheFlowOfValues) {
  const at::Tensor bad = torch::tensor({kNan});
  FiniteWatch watch;
  watch.look(0, 3, Crossing::kInputGradient, {bad});
  watch.look(2, 3, Crossing::kOutput, {torch::ones({1}), bad});
  watch.look(3, 3, Crossing::kLoss, {bad});
  watch.look(1, 5, Crossing::kInput, {bad});
  const auto first = watch.first(7);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->what.to_string(), "rank 7, stage 2, micro-batch 3: output 1");
  EXPECT_EQ(decode_sighting(encode(first))->what, first->what);
  watch.begin_step();
  EXPECT_EQ(watch.first(7), std::nullopt);
  EXPECT_EQ(decode_sighting(encode(std::nullopt)), std::nullopt);
}

// A backward is met from the last stage down; a sum over micro-batches comes last.
TEST(NonFinite, OrdersBackwardsAndSums) {
  const auto at = [](std::optional<int> micro_batch, int stage, Crossing crossing) {
    return NonFiniteSighting{{0, stage, micro_batch, ""}, crossing};
  };
  EXPECT_TRUE(at(0, 3, Crossing::kInputGradient).is_before(at(0, 2, Crossing::kOutputGradient)));
  EXPECT_TRUE(at(0, 3, Crossing::kLoss).is_before(at(0, 3, Crossing::kInputGradient)));
  EXPECT_TRUE(at(4, 0, Crossing::kInputGradient).is_before(at({}, 0, Crossing::kInputGradient)));
}

// A step of four ranks in which one value is NaN, and where all ranks have to see it begin.
enum class Where { kInput, kOutput, kLoss, kGradient, kWeight };

struct Strike {
  Where where;
  int stage, micro_batch;
  int rank = 0;  // Of a weight's gradient, which is of all micro-batches: which copy of the stage.
};

void PrintTo(const Strike& strike, std::ostream* stream) {
  *stream << "where " << static_cast<int>(strike.where) << ", stage " << strike.stage << ", micro-batch "
          << strike.micro_batch << ", rank " << strike.rank;
}

constexpr int kRanks = 4, kMicroBatches = 8;

at::Tensor spoiled(const at::Tensor& gradient) { return torch::full_like(gradient, kNan); }

// [rows, 4] to the same; column 0 is the micro-batch and passes as it is.
class SpoiltStage : public torch::nn::Module {
 public:
  SpoiltStage(Strike strike, int stage, int rank) : strike_(strike), stage_(stage) {
    weight_ = register_parameter("weight", torch::eye(3) / 2);
    if (strike.where == Where::kWeight && strike.stage == stage && strike.rank == rank) weight_.register_hook(spoiled);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::tanh(torch::matmul(x.narrow(1, 1, 3), weight_));
    const bool strikes = strike_.stage == stage_ && strike_.micro_batch == static_cast<int>(x[0][0].item<float>());
    if (strikes && strike_.where == Where::kOutput) y = y * kNan;
    if (strikes && strike_.where == Where::kGradient && y.requires_grad()) y.register_hook(spoiled);
    return torch::cat({x.narrow(1, 0, 1), y}, 1);
  }

 private:
  Strike strike_;
  int stage_;
  at::Tensor weight_;
};

TensorList given_to(const std::vector<int>& micro_batches, const Strike& strike) {
  if (micro_batches.empty()) return {};
  TensorList rows;
  for (const int k : micro_batches) {
    at::Tensor row = torch::full({2, 4}, 0.25);
    row.select(1, 0).fill_(k);
    if (strike.where == Where::kInput && strike.micro_batch == k) row[1][2] = kNan;
    rows.push_back(row);
  }
  return {torch::cat(rows)};
}

Criterion criterion_with(const Strike& strike) {
  return Criterion([strike](const TensorList& y, const TensorList& t) {
    const at::Tensor loss = torch::mse_loss(y[0], t[0]);
    const bool strikes =
        strike.where == Where::kLoss && strike.micro_batch == static_cast<int>(t[0][0][0].item<float>());
    return strikes ? loss * kNan : loss;
  });
}

std::string expected(const Strike& strike, const Placement& placement) {
  const int rank = strike.where == Where::kWeight ? strike.rank : placement.rank_of(strike.stage, strike.micro_batch);
  const std::string place = "rank " + std::to_string(rank) + ", stage " + std::to_string(strike.stage) + ", ";
  const std::string micro_batch = "micro-batch " + std::to_string(strike.micro_batch) + ": ";
  switch (strike.where) {
    case Where::kInput:
      return place + micro_batch + "input 0";
    case Where::kOutput:
      return place + micro_batch + "output 0";
    case Where::kLoss:
      return place + micro_batch + "the loss";
    case Where::kGradient:
      return place + micro_batch + "the gradient of input 0";
    case Where::kWeight:
      break;
  }
  return place + "the sum of all micro-batches: the gradient of stage" + std::to_string(strike.stage) + ".weight";
}

void train_spoilt(const std::string& schedule, const Strike& strike) {
  ScheduleSpec spec;
  spec.pipeline_model_parallel_size = kRanks;
  spec.num_microbatches = kMicroBatches;
  const Placement placement = builtin_registry().make(schedule, spec).placement;
  run_ranks(kRanks, [&](Rank& rank) {
    std::vector<std::shared_ptr<StageModule>> stages;
    std::vector<at::Tensor> parameters, before;
    for (const int stage : placement.stages_of(rank.index)) {
      auto module = std::make_shared<SpoiltStage>(strike, stage, rank.index);
      parameters.push_back(module->parameters()[0]);
      before.push_back(parameters.back().detach().clone());
      stages.push_back(make_stage(module));
    }
    PipelineOptions options;
    options.num_microbatches = kMicroBatches;
    options.check_finite = true;
    Pipeline pipeline(schedule, rank.transport, stages, options);
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    OptimizerHook hook(pipeline, optimizer, 1.0);
    const Strike labels{Where::kOutput, 0, 0};
    pipeline.step(given_to(pipeline.input_micro_batches(), strike), given_to(pipeline.loss_micro_batches(), labels),
                  criterion_with(strike));
    const OptimizerStep step = hook.step();
    EXPECT_TRUE(step.skipped);
    ASSERT_TRUE(step.first_bad.has_value());
    EXPECT_EQ(step.first_bad->to_string(), expected(strike, placement));
    for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(torch::equal(parameters[i], before[i]));
    EXPECT_TRUE(optimizer.state().empty());
  });
}

class SpoiltStep : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(NonFinite, SpoiltStep, ::testing::Values("1f1b", "zb1p", "dualpipe", "dualpipev"),
                         [](const auto& info) { return info.param; });

// Every rank skips, names the same place, and nothing changes.
TEST_P(SpoiltStep, IsSkippedAndNamesWhereItBegan) {
  const int last = GetParam() == "dualpipev" ? 2 * kRanks - 1 : kRanks - 1;
  for (const Strike& strike :
       {Strike{Where::kInput, 0, 2}, Strike{Where::kInput, 0, 7}, Strike{Where::kOutput, 1, 0},
        Strike{Where::kOutput, 2, 6}, Strike{Where::kOutput, last, 5}, Strike{Where::kLoss, last, 1},
        Strike{Where::kLoss, last, 4}, Strike{Where::kGradient, last, 3}, Strike{Where::kGradient, 1, 6}}) {
    SCOPED_TRACE(::testing::PrintToString(strike));
    train_spoilt(GetParam(), strike);
  }
}

// Of the two ranks that hold a stage it is the one whose own gradient was NaN, though the sum is so on both.
TEST_P(SpoiltStep, NamesTheCopyWhoseGradientItWas) {
  ScheduleSpec spec;
  spec.pipeline_model_parallel_size = kRanks;
  spec.num_microbatches = kMicroBatches;
  const Placement placement = builtin_registry().make(GetParam(), spec).placement;
  for (const int stage : {0, 2}) {
    for (const int rank : placement.ranks_of(stage)) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " on rank " + std::to_string(rank));
      train_spoilt(GetParam(), {Where::kWeight, stage, -1, rank});
    }
  }
}

TEST(NonFinite, ASkipThatTheCallerAsksForChangesNothing) {
  run_ranks(1, [](Rank& rank) {
    torch::nn::Linear layer(4, 4);
    PipelineOptions options;
    options.num_microbatches = 2;
    Pipeline pipeline("1f1b", rank.transport, {make_stage(layer.ptr())}, options);
    torch::optim::SGD optimizer(layer->parameters(), 0.1);
    OptimizerHook hook(pipeline, optimizer);
    const Criterion criterion([](const auto& y, const auto& t) { return torch::mse_loss(y[0], t[0]); });
    const TensorList x = {torch::ones({4, 4})};
    pipeline.step(x, x, criterion);
    const at::Tensor before = layer->weight.detach().clone();
    const OptimizerStep step = hook.step(/*skip=*/true);
    EXPECT_TRUE(step.skipped);
    EXPECT_EQ(step.first_bad, std::nullopt);
    EXPECT_TRUE(torch::equal(layer->weight, before));
  });
}

// A failure in a step leaves the log of the rank, with the action that failed at hand.
class Throws : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& /*x*/) { throw std::runtime_error("no such expert"); }
};

TEST(RingLog, IsWrittenWhenAPipelineFails) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank& rank) {
    PipelineOptions options;
    options.num_microbatches = 2;
    options.ring_log_folder = folder.path();
    Pipeline pipeline("1f1b", rank.transport, {make_stage(std::make_shared<Throws>())}, options);
    const Criterion criterion([](const auto& y, const auto& t) { return torch::mse_loss(y[0], t[0]); });
    const TensorList x = {torch::ones({4, 4})};
    EXPECT_THROW(pipeline.step(x, x, criterion), PipelineError);
    EXPECT_EQ(pipeline.ring_log().standing().action, "0F0");
  });
  EXPECT_THAT(read_text(folder.file("ring_rank0.jsonl")), HasSubstr("\"failure\":\"no such expert\""));
}

}  // namespace
}  // namespace dualpipe
