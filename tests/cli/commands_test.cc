// check, demo, schedules and the program as a whole.
#include <gmock/gmock.h>

#include "tests/cli/run_program.h"

namespace dualpipe {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(Check, SaysWhatWasChecked) {
  const Outcome run = run_dualpipe("check tests/golden/dualpipe_r8_m20.csv");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(
      run.out,
      "tests/golden/dualpipe_r8_m20.csv: ok\n"
      "  8 ranks, 8 stages on two ranks each, 20 micro-batches\n"
      "  every F, B, I and W stands once, on its rank, in an order that can run\n"
      "  lowered: no deadlock under tagged rendezvous, nor under in-order channels with 2 slots per directed edge\n"
      "  least slots per directed edge: 2\n");
  EXPECT_THAT(run.err, IsEmpty());
}

TEST(Check, MarksTheFirstViolation) {
  const TemporaryFolder folder;
  const std::string path = folder.write("bad.csv", "0F0,0F1,0B1,0B0\n1F0,1B0,1B1,1F1\n");
  const Outcome run = run_dualpipe("check " + path);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.out, path +
                         ": order at rank 1, column 2: 1B1 needs 1F1 before it\n"
                         "\n"
                         "column     0    1    2    3\n"
                         "rank 0     0F0  0F1  0B1  0B0\n"
                         "rank 1     1F0  1B0 >1B1< 1F1\n");
}

TEST(Check, FindsADroppedAndARepeatedCell) {
  const TemporaryFolder folder;
  const Outcome dropped = run_dualpipe("check " + folder.write("dropped.csv", "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n"));
  EXPECT_EQ(dropped.exit_code, 1);
  EXPECT_THAT(dropped.out, HasSubstr("missing at rank 0: 0B1 stands nowhere\n"));
  const Outcome repeated =
      run_dualpipe("check " + folder.write("repeated.csv", "0F0,0F1,0B0,0B1,0B1\n1F0,1B0,1F1,1B1\n"));
  EXPECT_EQ(repeated.exit_code, 1);
  EXPECT_THAT(repeated.out, HasSubstr("repeated at rank 0, column 4: 0B1 stands more than once\n"));
}

TEST(Check, SaysHowManyCommunicationCellsItIgnores) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("comms.csv", "0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  const Outcome run = run_dualpipe("check " + path);
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out,
              StartsWith(path + ": ok\n"
                                "  2 ranks, 2 stages, 1 micro-batches\n"
                                "  5 communication cells ignored and lowered anew; columns count compute actions\n"));
  const Outcome bad = run_dualpipe("check " + folder.write("bad.csv", "0SEND_F0,0B0,0F0\n"));
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.out, HasSubstr(": order at rank 0, column 0: 0B0 needs 0F0 before it\n"));
  EXPECT_THAT(bad.out, EndsWith("  1 communication cell ignored and lowered anew; columns count compute actions\n"));
  EXPECT_THAT(run_dualpipe("check --help").out, HasSubstr("cells of communication"));
}

TEST(Check, RefusesWhatItCannotRead) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.file("missing.csv"), folder.file(""), folder.write("empty.csv", ""),
                                  folder.write("text.csv", "hello, world\n")}) {
    const Outcome run = run_dualpipe("check " + path);
    EXPECT_EQ(run.exit_code, 2) << path;
    EXPECT_THAT(run.err, StartsWith("dualpipe: ")) << path;
    EXPECT_THAT(run.out, IsEmpty()) << path;
  }
  EXPECT_EQ(run_dualpipe("check").exit_code, 2);
}

TEST(Demo, ShowsBothGridsTheTableAndAMistake) {
  const Outcome run = run_dualpipe("demo --colour never");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("DualPipe: 20 micro-batches enter 8 ranks from both ends"));
  EXPECT_THAT(run.out, HasSubstr("DualPipeV: the same order folded in half, 10 micro-batches on 4 ranks"));
  for (const char* name : {"1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    EXPECT_THAT(run.out, HasSubstr("\n" + std::string(name) + " "));
  }
  EXPECT_THAT(run.out, HasSubstr("order at rank 1, column 1: 1B1 needs 1F1 before it"));
  EXPECT_THAT(run.out, HasSubstr(">1B1<"));
}

TEST(Demo, IsColouredUnlessToldOtherwise) {
  EXPECT_THAT(run_dualpipe("demo").out, HasSubstr("\033[38;5;232;48;5;215m"));
  EXPECT_THAT(run_dualpipe("demo", "NO_COLOR=1").out, Not(HasSubstr("\033[")));
}

TEST(Schedules, ListsNamesWithTheirRules) {
  const Outcome run = run_dualpipe("schedules");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("dualpipe          P even, M even, M >= 2P"));
  for (const char* name : {"1f1b", "interleaved_1f1b", "zb1p", "dualpipev", "FILE.csv"}) {
    EXPECT_THAT(run.out, HasSubstr("\n" + std::string(name) + " "));
  }
}

TEST(Program, KnowsItsVersionAndHelps) {
  EXPECT_EQ(run_dualpipe("--version").out, "dualpipe " DUALPIPE_VERSION "\n");
  EXPECT_EQ(run_dualpipe("--help").exit_code, 0);
  EXPECT_THAT(run_dualpipe("plan --help").out, HasSubstr("--num-microbatches"));
  EXPECT_EQ(run_dualpipe("pla").exit_code, 2);
}

TEST(Program, HelpsWithWhatAShortRunOfTheTrainerIs) {
  for (const char* command : {"ab --help", "profile --help"}) {
    EXPECT_THAT(run_dualpipe(command).out, HasSubstr("lr_decay_iters=1000000000"));
    EXPECT_THAT(run_dualpipe(command).out, HasSubstr("neither loads a checkpoint nor saves one"));
  }
}

// Not with the 309 digits of the largest number that there is.
TEST(Program, SaysWhichNumbersWork) {
  EXPECT_EQ(run_dualpipe("scale --latency 0.5,-1").err,
            "dualpipe: --latency: must be a number of at least 0, got -1; for example 0.5; see dualpipe --help\n");
  EXPECT_EQ(run_dualpipe("plan -s 1f1b -P 2 -M 2 --width -1").err,
            "dualpipe: --width: must be a number of at least 0, got -1; for example 120; see dualpipe --help\n");
  EXPECT_EQ(run_dualpipe("profile --command true --timeout -1").err,
            "dualpipe: --timeout: must be a number of at least 0, got -1; for example 1800; see dualpipe --help\n");
  EXPECT_EQ(run_dualpipe("profile --config missing.yaml").err,
            "dualpipe: --config: must be a file that is there, got missing.yaml; for example "
            "configs/gpt_moe_tiny.yaml; see dualpipe --help\n");
}

}  // namespace
}  // namespace dualpipe
