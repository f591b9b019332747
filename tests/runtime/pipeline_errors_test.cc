// What a pipeline refuses, and how it ends when something throws. Every rank has to come back by itself.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "plugin/schedule/error.h"
#include "tests/runtime/comparison.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

std::vector<std::shared_ptr<StageModule>> two_stages() { return {mlp_stage(0), mlp_stage(1)}; }

// Over whatever the rank has.
Pipeline make(const std::string& schedule, Rank& rank, std::vector<std::shared_ptr<StageModule>> stages,
              PipelineOptions options) {
  options.timeout = std::chrono::seconds(30);
  if (rank.group) return Pipeline(schedule, rank.group, std::move(stages), std::move(options));
  return Pipeline(schedule, rank.transport, std::move(stages), std::move(options));
}

// The message of every rank, over loopback and over Gloo.
std::vector<std::string> refusals(int ranks, const std::function<void(Rank&)>& body) {
  std::vector<std::string> messages;
  for (const auto& error : errors_of_ranks(ranks, body)) messages.push_back(error.value_or("nothing was refused"));
  for (const auto& error : errors_of_gloo_ranks(ranks, body)) messages.push_back(error.value_or("nothing was refused"));
  return messages;
}

struct Mistake {
  std::string name;
  std::string schedule;
  PipelineOptions options;
  std::string message;
};

TEST(PipelineMistakes, AreRefusedOnEveryRankWithTheRule) {
  const std::vector<Mistake> mistakes{
      {"unknown schedule", "dualpip", {.num_microbatches = 8}, "got \"dualpip\"; did you mean dualpipe?"},
      {"no micro-batches", "dualpipe", {}, "[pipeline] num_microbatches must be at least 1, got 0"},
      {"odd micro-batches", "dualpipe", {.num_microbatches = 9}, "num_microbatches must be even, got 9"},
      {"no slot", "1f1b", {.num_microbatches = 8, .slots = 0}, "[pipeline] slots must be at least 1, got 0"},
      {"too few modules", "1f1b", {.num_microbatches = 8}, "needs one module per stage of the rank"},
      {"missing file", "nowhere.csv", {.num_microbatches = 8}, "nowhere.csv"}};
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    for (const std::string& message :
         refusals(2, [&](Rank& rank) { make(mistake.schedule, rank, two_stages(), mistake.options); })) {
      EXPECT_THAT(message, HasSubstr(mistake.message));
    }
  }
}

TEST(PipelineMistakes, AnOddNumberOfRanks) {
  for (const std::string& message :
       refusals(3, [&](Rank& rank) { make("dualpipe", rank, two_stages(), {.num_microbatches = 8}); })) {
    EXPECT_THAT(message, HasSubstr("pipeline_model_parallel_size must be even, got 3"));
  }
}

TEST(PipelineMistakes, OfOneRankAreToldToAll) {
  const auto messages = refusals(2, [](Rank& rank) {
    auto stages = two_stages();
    if (rank.index == 1) stages[1] = nullptr;
    make("dualpipe", rank, stages, {.num_microbatches = 4});
  });
  for (const std::string& message : messages) {
    EXPECT_EQ(message, "[rank 1] [dualpipe] the module of stage 0 is null");
  }
}

TEST(PipelineMistakes, OfOneRankInTheOptionsAreToldToAll) {
  for (const std::string& message : refusals(2, [](Rank& rank) {
         make("dualpipe", rank, two_stages(), {.num_microbatches = rank.index == 0 ? 4 : 0});
       })) {
    EXPECT_EQ(message, "[rank 1] [pipeline] num_microbatches must be at least 1, got 0");
  }
}

TEST(PipelineMistakes, RanksThatDisagreeSeeBothValues) {
  const auto messages = refusals(
      2, [](Rank& rank) { make("dualpipe", rank, two_stages(), {.num_microbatches = rank.index == 0 ? 4 : 6}); });
  for (const std::string& message : messages) {
    EXPECT_EQ(message, "[pipeline] ranks disagree about num_microbatches: 4 on rank 0, 6 on rank 1");
  }
}

TEST(PipelineMistakes, AScheduleFileThatCannotRunIsExplained) {
  const std::string path = testing::TempDir() + "/broken.csv";
  {
    std::ofstream file(path);
    file << "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n";
  }
  for (const std::string& message :
       refusals(2, [&](Rank& rank) { make(path, rank, {mlp_stage(rank.index)}, {.num_microbatches = 2}); })) {
    EXPECT_THAT(message, HasSubstr("0B1"));
  }
}

Comparison small() { return mlp_comparison("dualpipe", 2, 4); }

void step(const Comparison& comparison, Rank& rank, std::vector<std::shared_ptr<StageModule>> stages,
          const Criterion& criterion) {
  PipelineOptions options = comparison.options;
  options.timeout = std::chrono::seconds(30);
  options.failures = rank.failures;
  Pipeline pipeline = rank.group ? Pipeline(comparison.schedule, rank.group, std::move(stages), options)
                                 : Pipeline(comparison.schedule, rank.transport, std::move(stages), options);
  pipeline.step(select(comparison.inputs, pipeline.input_micro_batches()),
                select(comparison.labels, pipeline.loss_micro_batches()), criterion);
}

class PipelineFailure : public testing::TestWithParam<bool> {
 protected:
  std::vector<std::optional<std::string>> errors(int ranks, const RankBody& body) {
    return GetParam() ? errors_of_gloo_ranks(ranks, body) : errors_of_ranks(ranks, body);
  }
};

TEST_P(PipelineFailure, AModuleThatThrowsEndsAllRanksWithItsMessage) {
  Comparison comparison = small();
  comparison.schedule = "1f1b";
  const auto begin = std::chrono::steady_clock::now();
  const auto messages = errors(2, [&](Rank& rank) {
    auto stages = stages_of_rank(comparison, rank.index);
    auto calls = std::make_shared<int>(0);
    if (rank.index == 1) {
      auto inner = stages[0];
      stages[0] = function_stage({}, [inner, calls](const TensorList& inputs) {
        if (++*calls == 2) throw std::runtime_error("the attention is broken");
        return inner->forward(inputs);
      });
    }
    step(comparison, rank, stages, comparison.criterion);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_THAT(messages[1].value_or(""), testing::StartsWith("rank 1 failed in "));
  EXPECT_THAT(messages[1].value_or(""), HasSubstr("the attention is broken"));
  EXPECT_THAT(messages[0].value_or(""), HasSubstr("rank 0 stops: rank 1 failed in "));
  EXPECT_THAT(messages[0].value_or(""), HasSubstr("the attention is broken"));
}

TEST_P(PipelineFailure, ALossThatThrowsEndsAllRanksWithItsMessage) {
  const Comparison comparison = small();
  const Criterion broken([](const TensorList&, const TensorList& labels) -> at::Tensor {
    if (labels.at(0).sum().item<double>() != 0) throw std::runtime_error("the loss is broken");
    return {};
  });
  for (const auto& message :
       errors(2, [&](Rank& rank) { step(comparison, rank, stages_of_rank(comparison, rank.index), broken); })) {
    EXPECT_THAT(message.value_or(""), HasSubstr("the loss is broken"));
  }
}

TEST_P(PipelineFailure, InputsThatDoNotFitEndAllRanks) {
  Comparison comparison = small();
  const auto messages = errors(2, [&](Rank& rank) {
    Comparison mine = comparison;
    PipelineOptions options = mine.options;
    options.failures = rank.failures;
    Pipeline pipeline = rank.group ? Pipeline("1f1b", rank.group, {mlp_stage(rank.index)}, options)
                                   : Pipeline("1f1b", rank.transport, {mlp_stage(rank.index)}, options);
    pipeline.step(rank.index == 0 ? MicroBatches(3) : MicroBatches{}, rank.index == 1 ? mine.labels : MicroBatches{},
                  mine.criterion);
  });
  for (const auto& message : messages) {
    EXPECT_THAT(message.value_or(""),
                HasSubstr("[step] inputs must hold one entry for each of this rank's 4 micro-batches, got 3"));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, PipelineFailure, testing::Bool(),
                         [](const auto& info) { return info.param ? "Gloo" : "Loopback"; });

TEST(PipelineFailureOnOneRank, TheOriginalExceptionIsNested) {
  Comparison comparison = small();
  run_ranks(1, [&](Rank& rank) {
    auto stage = function_stage({}, [](const TensorList&) -> TensorList { throw std::out_of_range("nothing there"); });
    Pipeline pipeline("1f1b", rank.transport, {stage}, {.num_microbatches = 4});
    try {
      pipeline.step(comparison.inputs, comparison.labels, comparison.criterion);
      FAIL() << "no exception";
    } catch (const PipelineError& error) {
      EXPECT_EQ(error.record(), (FailureRecord{0, "0F0", "nothing there"}));
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    }
    EXPECT_THROW(pipeline.step(comparison.inputs, comparison.labels, comparison.criterion), PipelineError);
  });
}

}  // namespace
}  // namespace dualpipe
