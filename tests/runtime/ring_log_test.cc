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

// NaN in one weight of the second stage: every rank skips, names the same place, and nothing changes.
TEST(NonFinite, EveryRankSkipsAndNamesOnePlace) {
  run_ranks(2, [](Rank& rank) {
    torch::nn::Linear layer(4, 4);
    if (rank.index == 1) {
      const at::NoGradGuard guard;
      layer->weight[0][0] = kNan;
    }
    PipelineOptions options;
    options.num_microbatches = 4;
    options.check_finite = true;
    Pipeline pipeline("1f1b", rank.transport, {make_stage(layer.ptr())}, options);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    OptimizerHook hook(pipeline, optimizer, 1.0);
    const Criterion criterion([](const auto& y, const auto& t) { return torch::mse_loss(y[0], t[0]); });
    const TensorList x = {torch::ones({8, 4})};
    pipeline.step(rank.index == 0 ? x : TensorList{}, rank.index == 1 ? x : TensorList{}, criterion);
    const at::Tensor before = layer->weight.detach().clone();
    const OptimizerStep step = hook.step();
    EXPECT_TRUE(step.skipped);
    ASSERT_TRUE(step.first_bad.has_value());
    EXPECT_EQ(step.first_bad->to_string(), "rank 1, stage 1, micro-batch 0: output 0");
    EXPECT_TRUE(torch::equal(torch::nan_to_num(layer->weight), torch::nan_to_num(before)));
    EXPECT_TRUE(optimizer.state().empty());
  });
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
