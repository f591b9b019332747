// Every target over its corpus, and over as many random changes of it as time allows: no exception but a refusal, no
// memory that the input does not justify, an end within a second. Without sanitizers this finds less than libFuzzer
// does (tests/fuzz/README.md), but it runs with the tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/allocation.h"
#include "tests/fuzz/targets.h"

namespace dualpipe::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBytesPerByte =
    512;  // A JSON value or a cell takes some hundred bytes and a byte or three of text.
constexpr std::size_t kAnyway = 1 << 20;  // Tables of keys, a page's script, buffers of streams.
constexpr std::chrono::milliseconds kTimePerTarget{1500};
constexpr std::chrono::seconds kLongest{10};  // Of one input, on a busy machine under a sanitizer.

std::vector<std::string> corpus_of(const Target& target) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus/" + std::string(target.name))) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const auto& file : files) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    inputs.push_back(text.str());
  }
  return inputs;
}

class Changes {
 public:
  explicit Changes(std::vector<std::string> inputs) : inputs_(std::move(inputs)), random_(20261130) {}

  std::string next() {
    std::string text = inputs_[below(inputs_.size())];
    for (std::size_t left = 1 + below(4); left > 0; --left) change(text);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % std::max<std::size_t>(bound, 1); }

  void change(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = below(std::min<std::size_t>(text.size() - at, 16) + 1);
    switch (below(7)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(below(text.size() + 1), 32));
        break;
      case 2:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.insert(at, std::string(kWords[below(std::size(kWords))]));
        break;
      default:
        text.insert(at, inputs_[below(inputs_.size())].substr(0, 256));
    }
  }

  static constexpr std::string_view kWords[] = {
      "-1",  "0",    "2147483647", "4294967296", "9223372036854775807", "1e308",
      "NaN", "null", "[[[[[[[[",   "{\"a\":",    "\xff\xff\xff\xff",    "*a",
      "&a ", "[",    "]"};

  std::vector<std::string> inputs_;
  std::mt19937_64 random_;
};

void read_once(const Target& target, const std::string& input) {
  const Clock::time_point began = Clock::now();
  const PeakAllocation peak;
  ASSERT_NO_THROW(target.read(input)) << testing::PrintToString(input);
  ASSERT_LE(peak.bytes(), kAnyway + kBytesPerByte * input.size()) << testing::PrintToString(input);
  ASSERT_LT(Clock::now() - began, kLongest) << testing::PrintToString(input);
}

class EveryTarget : public testing::TestWithParam<Target> {};

INSTANTIATE_TEST_SUITE_P(Fuzz, EveryTarget, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryTarget, StandsItsCorpus) {
  const std::vector<std::string> inputs = corpus_of(GetParam());
  ASSERT_FALSE(inputs.empty());
  for (const std::string& input : inputs) read_once(GetParam(), input);
}

TEST_P(EveryTarget, StandsRandomChanges) {
  Changes changes(corpus_of(GetParam()));
  const Clock::time_point end = Clock::now() + kTimePerTarget;
  int tried = 0;
  for (; Clock::now() < end && !HasFatalFailure(); ++tried) read_once(GetParam(), changes.next());
  EXPECT_GT(tried, 0);
}

// Whoever nests as deep as a file allows costs stack, not only memory.
TEST_P(EveryTarget, StandsDepth) {
  for (const std::string_view open : {"[", "{\"a\":", "(", "- ", "a: [", "{a: ", "{\"ms\":[", "? "}) {
    std::string deep;
    while (deep.size() < 100000) deep += open;
    read_once(GetParam(), deep);
    read_once(GetParam(), "{\"iteration\":1,\"ms\":" + deep);
  }
}

// One key whose value is a list in a list in a list ...
TEST_P(EveryTarget, StandsDepthThatIsClosed) {
  const std::string deep = std::string(50000, '[') + std::string(50000, ']');
  for (const std::string key : {"ms", "format", "stages", "layers", "spans", "num_layers"}) {
    read_once(GetParam(), "{\"" + key + "\":" + deep + "}");
    read_once(GetParam(), key + ": " + deep);
    read_once(GetParam(), key + "=" + deep);
  }
  read_once(GetParam(), R"({"format":"dualpipe-cost","version":1,"layers":[{"name":"0","forward":)" + deep + "}]}");
}

}  // namespace
}  // namespace dualpipe::fuzz
