// The trainer as a user runs it, under every schedule, in 2 to 8 processes: the same losses and gradient norms as in
// one process, the same to the bit when run again, and what ran is what was planned.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "examples/pretrain_gpt/extensions.h"
#include "examples/pretrain_gpt/train.h"
#include "tests/libtorch_host/training_run.h"

namespace dualpipe {
namespace {

// What torchrun sets; the test hosts the store as its agent does.
void behave_like_torchrun(const Process& process) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(process.rank));
  set("LOCAL_RANK", std::to_string(process.rank));
  set("WORLD_SIZE", std::to_string(process.size));
  set("LOCAL_WORLD_SIZE", std::to_string(process.size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(process.store_port));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
}

DUALPIPE_PROCESS_BODY(train) {
  behave_like_torchrun(process);
  pretrain_gpt::ScheduleRegistry registry;
  registry.add(pretrain_gpt::builtin_1f1b());
  pretrain_gpt::register_extensions(registry);
  pretrain_gpt::run_train({process.args.at(0), {process.args.begin() + 1, process.args.end()}}, registry);
}

TEST_F(TrainingRuns, AreTheSameUnderEveryScheduleIn2Processes) {
  expect_all_like_one_process(2, {"builtin_1f1b", "1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"});
}

TEST_F(TrainingRuns, AreTheSameUnderEveryScheduleIn4Processes) {
  expect_all_like_one_process(4, {"builtin_1f1b", "1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"});
}

TEST_F(TrainingRuns, AreTheSameUnderDualPipeIn6And8Processes) {
  expect_all_like_one_process(6, {"dualpipe"});
  expect_all_like_one_process(8, {"dualpipe"});
}

TEST_F(TrainingRuns, AreEqualToTheBitWhenRunAgain) {
  for (const std::string schedule : {"builtin_1f1b", "1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    for (int processes : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} in {} processes", schedule, processes));
      expect_same_bits(train(schedule, processes), train(schedule, processes));
    }
  }
}

TEST_F(TrainingRuns, AreTheSameFromACsvFileAndWithDeferredWeightGradients) {
  const Run reference = train("builtin_1f1b", 1);
  {
    std::ofstream file(folder_ / "mine.csv");
    print_rows(file, builtin_registry().make("zb1p", {2, kMicroBatches, 2}).rows);
  }
  expect_like_one_process(train((folder_ / "mine.csv").string(), 2), reference);
  for (const std::string schedule : {"zb1p", "dualpipe"}) {
    expect_like_one_process(train(schedule, 2, {"defer_tail_weight_gradients=true"}), reference);
  }
  expect_like_one_process(train("dualpipe", 2, {"untie_embeddings_and_output_weights=true"}),
                          train("builtin_1f1b", 1, {"untie_embeddings_and_output_weights=true"}));
}

}  // namespace
}  // namespace dualpipe
