#include "plugin/runtime/gloo_threads.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plugin/runtime/c10d_transport.h"
#include "plugin/runtime/group_collectives.h"
#include "plugin/schedule/error.h"
#include "tests/support/gloo_group.h"

namespace dualpipe {
namespace {

using ::testing::Each;

std::vector<pid_t> gloo_threads() {
  std::vector<pid_t> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "gloo_tcp_loop") threads.push_back(std::stoi(task.path().filename()));
  }
  return threads;
}

std::vector<int> policies() {
  std::vector<int> result;
  for (const pid_t thread : gloo_threads()) result.push_back(sched_getscheduler(thread));
  return result;
}

class GlooThreads : public testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(policies().empty()) << "this LibTorch gives Gloo's threads another name"; }
  void TearDown() override { unsetenv("DUALPIPE_GLOO_THREADS"); }

  c10::intrusive_ptr<c10d::ProcessGroup> group_ =
      make_gloo_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(30));
};

TEST_F(GlooThreads, YieldOnceTheirGroupHasATransport) {
  EXPECT_THAT(policies(), Each(SCHED_OTHER));
  make_c10d_transport(group_);
  EXPECT_THAT(policies(), Each(SCHED_BATCH));
}

TEST_F(GlooThreads, YieldOnceTheirGroupHasCollectives) {
  EXPECT_THAT(policies(), Each(SCHED_OTHER));
  const GroupCollectives collectives(group_, std::chrono::seconds(30), nullptr);
  EXPECT_THAT(policies(), Each(SCHED_BATCH));
}

TEST_F(GlooThreads, ThatHaveAPolicyKeepIt) {
  const sched_param priority{};
  for (const pid_t thread : gloo_threads()) ASSERT_EQ(sched_setscheduler(thread, SCHED_IDLE, &priority), 0);
  make_c10d_transport(group_);
  EXPECT_THAT(policies(), Each(SCHED_IDLE));
}

TEST_F(GlooThreads, StayAsTheyAreWhereTheEnvironmentSaysSo) {
  setenv("DUALPIPE_GLOO_THREADS", "preempt", 1);
  make_c10d_transport(group_);
  EXPECT_THAT(policies(), Each(SCHED_OTHER));
}

TEST_F(GlooThreads, RefuseAWordThatSaysNeither) {
  setenv("DUALPIPE_GLOO_THREADS", "no", 1);
  try {
    make_gloo_threads_yield();
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(error.what(), "[DUALPIPE_GLOO_THREADS] must be yield or preempt, got 'no'");
  }
}

}  // namespace
}  // namespace dualpipe
