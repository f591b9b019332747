// What needs a GPU to be seen: thread ranks over loopback with everything on the device, NCCL at world size 1, and
// communication that runs beside compute because it has a stream of its own. tests/device/run.sh runs it.
#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "plugin/runtime/loopback_transport.h"
#include "plugin/runtime/nccl_groups.h"
#include "tests/runtime/comparison.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

const at::Device kDevice(at::kCUDA, 0);

MicroBatches on_device(const MicroBatches& batches) {
  MicroBatches moved;
  for (const TensorList& batch : batches) moved.push_back({batch.at(0).to(kDevice)});
  return moved;
}

std::shared_ptr<StageModule> on_device(std::shared_ptr<StageModule> stage) {
  stage->to(kDevice);
  return stage;
}

std::vector<Rank> device_ranks(int count) {
  std::vector<Rank> ranks;
  for (const auto& transport : make_loopback(count, {.device = kDevice})) {
    ranks.push_back({static_cast<int>(ranks.size()), count, transport, {}, {}, {}});
  }
  return ranks;
}

// One step with the stages that `make` gives, on the device, beside the comparison's in one process on the CPU.
void expect_like_cpu(const Comparison& comparison, Rank& rank, const StageFactory& make,
                     const std::vector<std::shared_ptr<StageModule>>& oracle) {
  const std::vector<int> numbers = [&] {
    const ScheduleSpec spec{comparison.ranks, comparison.options.num_microbatches};
    return builtin_registry().make(comparison.schedule, spec).placement.stages_of(rank.index);
  }();
  std::vector<std::shared_ptr<StageModule>> stages;
  for (int stage : numbers) stages.push_back(on_device(make(stage, static_cast<int>(oracle.size()))));
  Pipeline pipeline = make_pipeline(comparison, rank, stages);
  const StepResult result =
      pipeline.step(on_device(select(comparison.inputs, pipeline.input_micro_batches())),
                    on_device(select(comparison.labels, pipeline.loss_micro_batches())), comparison.criterion);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto wanted = oracle[numbers[i]]->named_parameters();
    for (const auto& item : stages[i]->named_parameters()) {
      ASSERT_TRUE(item.value().grad().is_cuda());
      expect_close(item.value().grad().cpu(), wanted[item.key()].grad(), comparison.tolerance,
                   "stage " + std::to_string(numbers[i]) + ", " + item.key());
    }
  }
  if (comparison.check) comparison.check(rank, pipeline, result);
}

c10::intrusive_ptr<c10d::ProcessGroup> nccl_alone() {
  using c10d::ProcessGroup;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto group = c10::make_intrusive<ProcessGroup>(store, 0, 1);
  group->setBackend(at::kCUDA, ProcessGroup::BackendType::NCCL,
                    make_nccl_group(store, 0, 1, std::chrono::seconds(60), /*max_ctas=*/4));
  group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
  return group;
}

// An all-to-all of a group of one, which gives back what it got.
class Exchange : public PendingExchange {
 public:
  Exchange(c10d::ProcessGroup& group, at::Tensor values) : in_(values.contiguous()), out_(at::empty_like(in_)) {
    std::vector<std::int64_t> even;
    work_ = group.getBackend(at::kCUDA)->alltoall_base(out_, in_, even, even);
  }
  // The current stream waits; the host does not.
  TensorList wait() override {
    EXPECT_TRUE(work_->wait());
    return {out_.requires_grad_()};
  }

 private:
  at::Tensor in_, out_;
  c10::intrusive_ptr<c10d::Work> work_;
};

// mlp_stage() with an exchange between its two layers.
std::shared_ptr<StageModule> phased_stage(int stage, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const auto parameters = mlp_stage(stage)->named_parameters();
  const at::Tensor up = parameters["up"], bias = parameters["bias"], down = parameters["down"];
  const auto first = [=](const TensorList& inputs) { return TensorList{at::gelu(at::linear(inputs.at(0), up, bias))}; };
  const auto second = [=](const TensorList& inputs) { return TensorList{at::linear(inputs.at(0), down)}; };
  const auto exchange = [group](const TensorList& values, PhaseContext&) -> std::unique_ptr<PendingExchange> {
    return std::make_unique<Exchange>(*group, values.at(0));
  };
  const auto compute = [](auto body) {
    return [body](const TensorList& inputs, PhaseContext&) { return body(inputs); };
  };
  std::vector<Phase> phases{{.spec = {.name = "up"}, .compute = compute(first)},
                            {.spec = {.name = "exchange", .kind = PhaseKind::kCommunication},
                             .exchange = exchange,
                             .exchange_back = exchange},
                            {.spec = {.name = "down"}, .compute = compute(second)}};
  return function_stage(
      {{"up", up}, {"bias", bias}, {"down", down}}, [=](const TensorList& inputs) { return second(first(inputs)); }, {},
      std::move(phases));
}

void synchronize() { c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(kDevice.index()); }

template <typename Body>
double milliseconds(const Body& body) {
  synchronize();
  const auto start = std::chrono::steady_clock::now();
  body();
  synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

TEST(Device, ThreadRanksOverLoopbackTrainLikeOneProcessOnTheCpu) {
  for (const std::string& schedule : all_schedules()) {
    const Comparison comparison = mlp_comparison(schedule, 4, 8);
    const auto oracle = all_stages(comparison);
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    run_on(device_ranks(4), [&](Rank& rank) { expect_like_cpu(comparison, rank, comparison.make, oracle); });
  }
}

TEST(Device, NcclAloneTrainsWithPhasesLikeOneProcessOnTheCpu) {
  Comparison comparison = mlp_comparison("dualpipev", 1, 6);
  comparison.check = [](Rank&, Pipeline&, const StepResult& result) {
    EXPECT_EQ(result.statistics.pairs_by_phases, 9) << result.statistics.overlap_summary();
  };
  const auto oracle = all_stages(comparison);
  run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  const auto group = nccl_alone();
  Rank rank{0, 1, {}, {}, group, {}};
  expect_like_cpu(
      comparison, rank, [&](int stage, int) { return phased_stage(stage, group); }, oracle);
}

TEST(Device, CtaLimitsReachTheCommunicator) {
  const auto backend = nccl_alone()->getBackend(at::kCUDA);
  EXPECT_EQ(dynamic_cast<c10d::ProcessGroupNCCL&>(*backend).getOptions()->config.maxCTAs, 4);
}

TEST(Device, AnExchangeRunsBesideCompute) {
  const auto group = nccl_alone();
  const at::Tensor values = at::ones({std::int64_t{1} << 28}, at::TensorOptions().device(kDevice));
  const auto exchange = [&](int times) {
    std::vector<std::unique_ptr<Exchange>> pending;
    for (int i = 0; i < times; ++i) pending.push_back(std::make_unique<Exchange>(*group, values));
    return pending;
  };
  const auto wait = [](const auto& pending) {
    for (const auto& one : pending) one->wait();
  };
  wait(exchange(1));  // The communicator comes to be.
  const double one_exchange = milliseconds([&] { wait(exchange(1)); });
  const int times = std::clamp(static_cast<int>(20 / one_exchange), 1, 16);
  const double communication = milliseconds([&] { wait(exchange(times)); });
  constexpr std::int64_t kCycles = 40'000'000;  // About 20 ms, of one multiprocessor.
  const double compute = milliseconds([] { at::cuda::sleep(kCycles); });
  const double both = milliseconds([&] {
    const auto pending = exchange(times);
    at::cuda::sleep(kCycles);
    wait(pending);
  });
  RecordProperty("communication_ms", std::to_string(communication));
  RecordProperty("compute_ms", std::to_string(compute));
  RecordProperty("both_ms", std::to_string(both));
  EXPECT_LT(both, std::max(communication, compute) + 0.3 * std::min(communication, compute))
      << "communication alone " << communication << " ms, compute alone " << compute << " ms";
}

}  // namespace
}  // namespace dualpipe
