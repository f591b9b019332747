#include "plugin/runtime/gloo_threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "plugin/runtime/c10d_transport.h"
#include "plugin/runtime/group_collectives.h"
#include "plugin/schedule/error.h"
#include "tests/support/gloo_group.h"

namespace dualpipe {
namespace {

using std::chrono::seconds;

std::set<pid_t> named_threads() {
  std::set<pid_t> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "gloo_tcp_loop") threads.insert(std::stoi(task.path().filename()));
  }
  return threads;
}

// With a group of its own, and the thread of that.
class GlooThreads : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("DUALPIPE_GLOO_THREADS");               // The caller's.
    setenv("LOCAL_WORLD_SIZE", "100000", 1);         // More than any machine has processors.
    const std::set<pid_t> before = named_threads();  // Of groups that earlier tests left behind.
    group_ = make_gloo_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, seconds(30));
    const auto end = std::chrono::steady_clock::now() + seconds(30);
    while (thread_ == 0 && std::chrono::steady_clock::now() < end) {  // It names itself.
      for (const pid_t thread : named_threads()) {
        if (!before.contains(thread)) thread_ = thread;
      }
    }
    ASSERT_NE(thread_, 0) << "this LibTorch gives Gloo's threads another name than gloo_tcp_loop";
  }
  void TearDown() override {
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("DUALPIPE_GLOO_THREADS");
  }

  int policy() const { return sched_getscheduler(thread_); }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  pid_t thread_ = 0;
};

TEST_F(GlooThreads, YieldOnceTheirGroupHasATransport) {
  EXPECT_EQ(policy(), SCHED_OTHER);
  make_c10d_transport(group_);
  EXPECT_EQ(policy(), SCHED_BATCH);
}

TEST_F(GlooThreads, YieldOnceTheirGroupHasCollectives) {
  EXPECT_EQ(policy(), SCHED_OTHER);
  const GroupCollectives collectives(group_, seconds(30), nullptr);
  EXPECT_EQ(policy(), SCHED_BATCH);
}

TEST_F(GlooThreads, AreCounted) {
  EXPECT_GE(make_gloo_threads_yield(1), 1);
  EXPECT_EQ(policy(), SCHED_BATCH);
  EXPECT_GE(make_gloo_threads_yield(1), 1);  // Those that yield already, too.
}

TEST_F(GlooThreads, ThatHaveAPolicyKeepIt) {
  const sched_param priority{};
  ASSERT_EQ(sched_setscheduler(thread_, SCHED_IDLE, &priority), 0);
  make_c10d_transport(group_);
  EXPECT_EQ(policy(), SCHED_IDLE);
}

TEST_F(GlooThreads, StayAsTheyAreWhereTheEnvironmentSaysSo) {
  setenv("DUALPIPE_GLOO_THREADS", "preempt", 1);
  make_c10d_transport(group_);
  EXPECT_EQ(policy(), SCHED_OTHER);
}

TEST_F(GlooThreads, StayAsTheyAreWhereProcessorsSuffice) {
  setenv("LOCAL_WORLD_SIZE", "1", 1);
  EXPECT_EQ(make_gloo_threads_yield(100000), 0);
  unsetenv("LOCAL_WORLD_SIZE");
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    setenv(name, "1", 1);
    EXPECT_EQ(make_gloo_threads_yield(100000), 0) << name;
    unsetenv(name);
  }
  EXPECT_EQ(make_gloo_threads_yield(1), 0);
  EXPECT_EQ(policy(), SCHED_OTHER);
  EXPECT_GE(make_gloo_threads_yield(100000), 1);
  EXPECT_EQ(policy(), SCHED_BATCH);
}

TEST(GlooThreadsShouldYield, WhereRanksOutnumberProcessorsOrTheVariableSaysSo) {
  EXPECT_TRUE(should_gloo_threads_yield(std::nullopt, 3, 2));
  EXPECT_FALSE(should_gloo_threads_yield(std::nullopt, 2, 2));
  EXPECT_TRUE(should_gloo_threads_yield("yield", 1, 2));
  EXPECT_FALSE(should_gloo_threads_yield("preempt", 3, 2));
  try {
    should_gloo_threads_yield("no", 3, 2);
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(error.what(), "[DUALPIPE_GLOO_THREADS] must be yield or preempt, got 'no'");
  }
}

}  // namespace
}  // namespace dualpipe
