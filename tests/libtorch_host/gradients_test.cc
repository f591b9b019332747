// One step of the trainer's model in float64 under every schedule beside plain autograd over the whole model, and the
// copies of a parameter on different ranks after several steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "examples/pretrain_gpt/optimizer.h"
#include "tests/libtorch_host/trainer_case.h"

namespace dualpipe {
namespace {

DUALPIPE_PROCESS_BODY(gradients) {
  pretrain_gpt::Config config = small_config(process.args.at(0));
  config.untie_embeddings_and_output_weights = process.args.at(1) == "untied";
  TrainerRank rank(process, config, "gradients");
  const WholeStep whole = run_whole_step(rank.config());
  const double loss = rank.schedule().train_step(rank.reader(0));
  require(std::abs(loss - whole.loss) <= 1e-12 * whole.loss, fmt::format("loss {} instead of {}", loss, whole.loss));
  compare_gradients(rank.schedule().chunks(), *whole.chunk);

  const auto optimizer = pretrain_gpt::make_optimizer(config, rank.schedule().chunks());
  for (int step = 0; step < 3; ++step) {
    if (step > 0) rank.schedule().train_step(rank.reader(step));
    const auto outcome = rank.schedule().optimizer_step(*optimizer, 0.5);
    require(!outcome.skipped && outcome.grad_norm > 0, "a step was skipped");
    optimizer->zero_grad();
    compare_copies(rank.context(), fmt::format("copies {}", step), rank.schedule().chunks());
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
