#include "plugin/schedule/error.h"

#include <gtest/gtest.h>

namespace dualpipe {
namespace {

TEST(Error, SaysOriginAndRule) {
  const ScheduleError error("dualpipev", "num_microbatches must be at least 2 x ranks = 8, got 6");
  EXPECT_STREQ(error.what(), "[dualpipev] num_microbatches must be at least 2 x ranks = 8, got 6");
}

TEST(Error, CheckThrowsLogicErrorWithItsWords) {
  EXPECT_NO_THROW(check(true, "never said"));
  try {
    check(false, "slots are counted");
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    FAIL() << "a broken invariant is not the caller's mistake: " << error.what();
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "broken invariant: slots are counted");
  }
}

struct NearestCase {
  const char* name;
  const char* nearest;
};

class NearestName : public testing::TestWithParam<NearestCase> {};

TEST_P(NearestName, IsTheLeastEditedOrNone) {
  const std::vector<std::string> names = {"1f1b", "dualpipe", "dualpipev", "interleaved_1f1b", "zb1p"};
  EXPECT_EQ(nearest_name(GetParam().name, names), GetParam().nearest) << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(Table, NearestName,
                         testing::Values(NearestCase{"dualpipe", "dualpipe"}, NearestCase{"DualPipe", "dualpipe"},
                                         NearestCase{"dualpip", "dualpipe"}, NearestCase{"dualpipe_v", "dualpipev"},
                                         NearestCase{"zb1", "zb1p"}, NearestCase{"1F1B", "1f1b"},
                                         NearestCase{"interleaved", "interleaved_1f1b"},
                                         // More than half of the letters would have to change.
                                         NearestCase{"gpipe_x", ""}, NearestCase{"xyz", ""}, NearestCase{"", ""}));

TEST(NearestName, NoCandidatesGiveNone) { EXPECT_EQ(nearest_name("dualpipe", {}), ""); }

}  // namespace
}  // namespace dualpipe
