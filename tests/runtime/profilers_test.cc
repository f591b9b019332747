// Actions and phases as torch's own profilers see them: the Kineto trace, and NVTX ranges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/runtime/comparison.h"
#include "tests/runtime/phased_stage.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

const std::vector<std::string> kSomeRanges = {"dualpipe::0F0",
                                              "dualpipe::0F0 0.attention",
                                              "dualpipe::0F0 0.dispatch post",
                                              "dualpipe::0F0 0.dispatch wait",
                                              "dualpipe::1I1 0.combine post",
                                              "dualpipe::1I1 0.mlp",
                                              "dualpipe::1W1 0.mlp"};

// Trains a step of phased stages on one rank, between `begin` and `end` on the rank's thread.
void train_between(const std::function<void()>& begin, const std::function<void()>& end) {
  Comparison comparison = mlp_comparison("dualpipev", 1, 4);
  comparison.make = [](int stage, int) {
    PhasedStageOptions options;
    options.layers = {LayerKind::kMoe};
    return phased_stage(stage, options);
  };
  run_on_ranks(comparison, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    begin();
    train_once(comparison, pipeline);
    end();
  });
}

TEST(Profilers, KinetoTracesActionsAndPhases) {
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities = {torch::profiler::impl::ActivityType::CPU};
  std::set<std::string> names;
  train_between(
      [&] {
        torch::autograd::profiler::prepareProfiler(config, activities);
        torch::autograd::profiler::enableProfiler(config, activities);
      },
      [&] {
        const auto trace = torch::autograd::profiler::disableProfiler();
        for (const auto& event : trace->events()) names.insert(event.name());
      });
  for (const std::string& range : kSomeRanges) EXPECT_TRUE(names.contains(range)) << range;
}

using Open = std::vector<std::string>;  // Ranges, outermost first.

// Keeps what CUDA's part of torch passes on to NVTX, without the number that torch adds.
class KeptRanges final : public torch::profiler::impl::ProfilerStubs {
 public:
  bool enabled() const override { return true; }
  void rangePush(const char* name) const override {
    const std::string_view range = name;
    open.emplace_back(range.substr(0, range.find(", op_id = ")));
    all.insert(open);
  }
  void rangePop() const override { open.pop_back(); }
  void mark(const char*) const override {}
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, std::int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  mutable Open open;
  mutable std::set<Open> all;
};

TEST(Profilers, NvtxRangesAreNestedAsActionsAndPhasesAre) {
  KeptRanges ranges;
  const torch::profiler::impl::ProfilerStubs* before = torch::profiler::impl::cudaStubs();
  torch::profiler::impl::registerCUDAMethods(&ranges);
  train_between([] { torch::autograd::profiler::enableProfiler(ProfilerConfig(ProfilerState::NVTX), {}); },
                [] { torch::autograd::profiler::disableProfiler(); });
  torch::profiler::impl::registerCUDAMethods(const_cast<torch::profiler::impl::ProfilerStubs*>(before));
  EXPECT_THAT(ranges.open, testing::IsEmpty());
  for (const std::string& range : kSomeRanges) {
    const std::size_t depth = range.find(' ') == std::string::npos ? 1 : 2;  // Phases lie in actions.
    EXPECT_TRUE(std::ranges::any_of(ranges.all, [&](const Open& open) {
      return open.back() == range && open.size() == depth && open.front().starts_with("dualpipe::");
    })) << range;
  }
}

}  // namespace
}  // namespace dualpipe
