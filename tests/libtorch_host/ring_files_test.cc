// The log of the trainer's own schedule, read back by what `dualpipe postmortem` reads it with.
#include <gtest/gtest.h>

#include <chrono>

#include "examples/pretrain_gpt/failures/action_ring.h"
#include "plugin/compare/postmortem.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe {
namespace {

using pretrain_gpt::ActionKind;
using pretrain_gpt::ActionRing;

constexpr const char* kFailure =
    R"json({"rank":3,"code":10,"place":"step 2, 3F5 (stage 3, micro-batch 5)","message":"no \"such\"\nexpert"})json";

double unix_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

TEST(ActionRing, WritesWhatAPostmortemReads) {
  const TemporaryFolder folder;
  const double before = unix_now();
  ActionRing ring(2, 4);
  ring.done(ring.begin(ActionKind::kCollective, "the sum of loss weights"));
  ring.post(ActionKind::kSend, "2SEND_F1", 3, 4096);
  const auto compute = ring.begin(ActionKind::kCompute, "2F2");
  ring.start(ring.post(ActionKind::kReceive, "2RECV_B0", 3, 8192));
  ring.done(compute);
  ring.write(folder.path(), kFailure);
  const double after = unix_now();

  const std::vector<RingFile> files = read_rings(folder.path());
  ASSERT_EQ(files.size(), 1U);
  const RingFile& file = files[0];
  EXPECT_EQ(file.rank, 2);
  EXPECT_EQ(file.world_size, 4);
  EXPECT_EQ(file.failed_rank, 3);
  EXPECT_EQ(file.failed_place, "step 2, 3F5 (stage 3, micro-batch 5)");
  EXPECT_EQ(file.failure, "no \"such\"\nexpert");
  EXPECT_TRUE(before <= file.written && file.written <= after);

  const struct {
    const char* kind;
    const char* action;
    std::optional<int> peer;
    std::int64_t bytes;
    bool started, done;
  } wanted[] = {{"collective", "the sum of loss weights", {}, 0, true, true},
                {"send", "2SEND_F1", 3, 4096, false, false},
                {"compute", "2F2", {}, 0, true, true},
                {"receive", "2RECV_B0", 3, 8192, true, false}};
  ASSERT_EQ(file.actions.size(), std::size(wanted));
  for (std::size_t i = 0; i < std::size(wanted); ++i) {
    const RingAction& action = file.actions[i];
    EXPECT_EQ(action.kind, wanted[i].kind) << i;
    EXPECT_EQ(action.action, wanted[i].action) << i;
    EXPECT_EQ(action.peer, wanted[i].peer) << i;
    EXPECT_EQ(action.bytes, wanted[i].bytes) << i;
    EXPECT_TRUE(before <= action.posted && action.posted <= file.written) << i;
    EXPECT_EQ(action.started.has_value(), wanted[i].started) << i;
    EXPECT_EQ(action.done.has_value(), wanted[i].done) << i;
    EXPECT_GE(action.started.value_or(action.posted), action.posted) << i;
    EXPECT_GE(action.done.value_or(after), action.started.value_or(action.posted)) << i;
  }
  const Postmortem result = examine(files);
  EXPECT_EQ(result.failed_rank, 3);
  ASSERT_EQ(result.waiting.size(), 1U);
  EXPECT_EQ(result.waiting[0].action.action, "2RECV_B0");
  EXPECT_EQ(result.parting, 3);
}

TEST(ActionRing, WritesALogWithoutAFailureToo) {
  const TemporaryFolder folder;
  ActionRing(0, 1).write(folder.path(), "");
  const RingFile file = read_rings(folder.path()).at(0);
  EXPECT_EQ(file.failed_rank, std::nullopt);
  EXPECT_EQ(file.failure, "");
  EXPECT_TRUE(file.actions.empty());
}

}  // namespace
}  // namespace dualpipe
