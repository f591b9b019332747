#include "examples/pretrain_gpt/distributed.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <vector>

namespace pretrain_gpt {
namespace {

using ::testing::Each;

std::set<pid_t> threads() {
  std::set<pid_t> numbers;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    numbers.insert(std::stoi(task.path().filename()));
  }
  return numbers;
}

// Policies of the threads that a maker of groups begins.
std::vector<int> policies_with(const Environment& environment) {
  const std::set<pid_t> before = threads();
  const GroupMaker groups(c10::make_intrusive<c10d::HashStore>(), environment, std::chrono::seconds(30));
  const std::set<pid_t> now = threads();
  std::set<pid_t> begun;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::inserter(begun, begun.end()));
  EXPECT_FALSE(begun.empty());
  std::vector<int> policies(begun.size());
  std::transform(begun.begin(), begun.end(), policies.begin(), sched_getscheduler);
  return policies;
}

Environment on_one_machine(int ranks) {
  Environment environment;
  environment.world_size = environment.local_world_size = ranks;
  return environment;
}

TEST(GroupMaker, HasAThreadThatYieldsAsTheEnvironmentSays) {
  ASSERT_EQ(sched_getscheduler(0), SCHED_OTHER);
  Environment environment = on_one_machine(1);
  environment.gloo_threads_yield = true;
  EXPECT_THAT(policies_with(environment), Each(SCHED_BATCH));
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  environment = on_one_machine(100000);
  environment.gloo_threads_yield = false;
  EXPECT_THAT(policies_with(environment), Each(SCHED_OTHER));
}

TEST(GroupMaker, HasAThreadThatYieldsWhereRanksOutnumberProcessors) {
  EXPECT_THAT(policies_with(on_one_machine(100000)), Each(SCHED_BATCH));
  EXPECT_THAT(policies_with(on_one_machine(1)), Each(SCHED_OTHER));
}

}  // namespace
}  // namespace pretrain_gpt
