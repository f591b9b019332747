#include "plugin/compare/postmortem.h"

#include <gtest/gtest.h>

#include "tests/schedule/refusal.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe {
namespace {

constexpr const char* kHead0 =
    R"({"format":"dualpipe-ring","version":1,"rank":0,"world_size":3,"written":110.5,"failed_rank":2,)"
    R"("failed_place":"step 7, 2B0","failure":"its process has ended without a word"})"
    "\n";
constexpr const char* kHead1 =
    R"({"format":"dualpipe-ring","version":1,"rank":1,"world_size":3,"written":110.6,"failed_rank":2,)"
    R"("failed_place":"step 7, 2B0","failure":"its process has ended without a word"})"
    "\n";

// Rank 0 waits for rank 1, which waits for rank 2, which was killed.
void write_chain(const TemporaryFolder& folder) {
  folder.write("ring_rank0.jsonl",
               std::string(kHead0) +
                   R"({"kind":"compute","action":"0F0","posted":100.1,"started":100.1,"done":100.2})"
                   "\n"
                   R"({"kind":"send","action":"0SEND_F0","peer":1,"bytes":64,"posted":100.2})"
                   "\n"
                   R"({"kind":"receive","action":"0RECV_B0","peer":1,"bytes":64,"posted":100.1,"started":100.3})"
                   "\n");
  folder.write("ring_rank1.jsonl",
               std::string(kHead1) +
                   R"({"kind":"receive","action":"1RECV_F0","peer":0,"bytes":64,"posted":99,"started":99,"done":100.3})"
                   "\n"
                   R"({"kind":"receive","action":"1RECV_B0","peer":2,"bytes":64,"posted":100.1,"started":100.4})"
                   "\n"
                   R"({"kind":"compute","act)");  // Cut off.
}

TEST(Postmortem, FollowsTheWaitingToTheRankThatIsGone) {
  const TemporaryFolder folder;
  write_chain(folder);
  EXPECT_EQ(
      print_postmortem(read_rings(folder.path())),
      "2 of 3 ranks left a log; none of 2\n"
      "rank 2 failed first in step 7, 2B0: its process has ended without a word\n"
      "rank 0: last done 0F0 (10.400 s before); at 0RECV_B0 from rank 1, 64 bytes, since 10.300 s before the end\n"
      "rank 1: last done 1RECV_F0 (10.300 s before); at 1RECV_B0 from rank 2, 64 bytes, since 10.200 s before the "
      "end\n"
      "rank 0 waits for 0RECV_B0: rank 1 has not posted 1SEND_B0: it is at 1RECV_B0\n"
      "rank 1 waits for 1RECV_B0: rank 2 left no log\n"
      "the ranks part at rank 2\n");
}

RingFile ring(int rank, std::vector<RingAction> actions) { return {rank, 2, 20, {}, "", "", std::move(actions)}; }

// The message of the step before has the same name.
TEST(Postmortem, DoesNotTakeAnEarlierStepsMessageForThisOne) {
  const RingAction earlier{"receive", "1RECV_F0", 0, 8, 10, 10, 11};
  const RingAction waiting{"receive", "1RECV_F0", 0, 8, 15, 15, {}};
  const auto finding = [&](double sent) {
    return examine({ring(0, {{"send", "0SEND_F0", 1, 8, sent, {}, {}}}), ring(1, {earlier, waiting})})
        .waiting.at(0)
        .finding;
  };
  EXPECT_EQ(finding(10.5), "rank 0 has not posted 0SEND_F0: it is between actions");
  EXPECT_EQ(finding(15.5), "rank 0 has posted 0SEND_F0, 8 bytes: the message is under way, or its link is broken");
}

// Rank 3 threw. Rank 2 heard of it first and left; what it waited for came later.
TEST(Postmortem, PartsAtTheRankThatThrewWhereOthersHadToLeaveEarly) {
  const auto log = [](int rank, double written, std::vector<RingAction> actions) {
    return RingFile{rank, 4, written, 3, "step 2", "no such expert", std::move(actions)};
  };
  const std::vector<RingFile> rings = {log(0, 20, {{"receive", "0RECV_B0", 1, 8, 10, 19, {}}}),
                                       log(1, 20,
                                           {{"send", "1SEND_F1", 2, 8, 19.5, {}, {}},  //
                                            {"receive", "1RECV_B0", 2, 8, 10, 19.6, {}}}),
                                       log(2, 19, {{"receive", "2RECV_F1", 1, 8, 10, 18, {}}}),
                                       log(3, 20, {{"compute", "3F0", {}, 0, 17, 17, {}}})};
  const Postmortem result = examine(rings);
  EXPECT_EQ(result.parting, 3);
  ASSERT_EQ(result.waiting.size(), 3U);
  EXPECT_EQ(result.waiting[1].finding, "rank 2 has not posted 2SEND_B0: it is at 2RECV_F1");
  EXPECT_EQ(result.waiting[2].finding, "rank 1 posted 1SEND_F1 0.500 s later, when rank 2 had left");
}

// Rank 1 was blamed for a hang, and waits for rank 0 itself.
TEST(Postmortem, FollowsTheWaitingOfARankThatIsBlamed) {
  RingFile blamed = ring(1, {{"receive", "1RECV_F0", 0, 8, 15, 15, {}}});
  blamed.failed_rank = 1;
  const Postmortem result = examine({ring(0, {{"compute", "0F0", {}, 0, 14, 14, {}}}), blamed});
  EXPECT_EQ(result.failed_rank, 1);
  EXPECT_EQ(result.parting, 0);
}

// A receive is posted long before the action that waits for it begins.
TEST(Postmortem, TakesTheInnermostActionForTheOneAtHand) {
  const Postmortem result =
      examine({ring(1, {{"receive", "1RECV_F0", 0, 8, 10, 12, {}}, {"compute", "1F0", {}, 0, 11, 11, {}}})});
  ASSERT_EQ(result.waiting.size(), 1U);
  EXPECT_EQ(result.waiting[0].action.action, "1RECV_F0");
  EXPECT_EQ(result.parting, 0);
}

TEST(Postmortem, EndsWhereRanksWaitForEachOther) {
  const Postmortem result = examine(
      {ring(0, {{"receive", "0RECV_B0", 1, 8, 15, 15, {}}}), ring(1, {{"receive", "1RECV_F1", 0, 8, 15, 15, {}}})});
  EXPECT_EQ(result.waiting.size(), 2U);
  EXPECT_EQ(result.parting, 0);
  EXPECT_EQ(result.failed_rank, std::nullopt);
}

TEST(Postmortem, ListsTheFirstOfManyRanksWithoutALog) {
  RingFile alone = ring(1, {});
  alone.world_size = 131072;
  EXPECT_EQ(print_postmortem({alone}).substr(0, 91),
            "1 of 131072 ranks left a log; none of 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16");
  EXPECT_NE(print_postmortem({alone}).find(", 16, ...\nno log names"), std::string::npos);
}

TEST(Postmortem, RefusesWhatIsNoLog) {
  const TemporaryFolder folder;
  EXPECT_EQ(refusal_of([&] { read_rings(folder.path()); }),
            "[" + folder.path() +
                "] must hold ring_rank<R>.jsonl files, which a run writes when it fails; for example the output_dir of "
                "the trainer");
  const std::string path = folder.write("ring_rank0.jsonl", "{\"format\":\"dualpipe-timeline\"}\n");
  EXPECT_EQ(refusal_of([&] { read_rings(folder.path()); }),
            "[" + path + ":1] \"format\" must be dualpipe-ring, got \"dualpipe-timeline\"");
}

}  // namespace
}  // namespace dualpipe
