// Every file of tests/golden is what its generator writes, to the last byte. Files are named <schedule>_r<P>_m<M>.csv.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

const std::filesystem::path kFolder = "tests/golden";

std::vector<std::string> golden_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Schedule generated(const std::string& stem) {
  std::smatch match;
  check(std::regex_match(stem, match, std::regex("(.+)_r([0-9]+)_m([0-9]+)")), "a golden's name gives its spec");
  return builtin_registry().make(match[1], {std::stoi(match[2]), std::stoi(match[3])});
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, IsGeneratedCellByCell) {
  std::ostringstream text;
  print_rows(text, generated(GetParam()).rows);
  EXPECT_EQ(text.str(), contents(kFolder / (GetParam() + ".csv")));
}

TEST_P(Golden, IsReadBackWithItsPlacement) {
  const Schedule expected = generated(GetParam());
  const Schedule read = read_schedule((kFolder / (GetParam() + ".csv")).string());
  EXPECT_EQ(read.rows, expected.rows);
  EXPECT_EQ(read.num_microbatches, expected.num_microbatches);
  EXPECT_TRUE(read.placement == expected.placement);
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), [](const auto& info) { return info.param; });

TEST(Goldens, AreAllThere) { EXPECT_EQ(golden_files().size(), 26u); }

}  // namespace
}  // namespace dualpipe
