// Two pipelines whose stages exchange rows with each other, expert by expert, over Gloo: all-to-all with uneven and
// zero splits, while the pipelines' own messages move beside it.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <numeric>
#include <utility>

#include "tests/runtime/comparison.h"
#include "tests/support/gloo_group.h"
#include "tests/support/run_ranks.h"
#include "tests/support/whole_model.h"

namespace dualpipe {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int kExperts = 2;
constexpr int kRanks = 2;  // Of one pipeline.
constexpr int kWidth = 8;
constexpr int kMicroBatches = 6;

// The weights of a stage. Every expert's are here; a rank registers those that it holds.
struct Weights {
  at::Tensor dense;
  std::vector<at::Tensor> experts;
};

Weights weights_of(int stage) {
  Weights weights{weight({kWidth, kWidth}, 10 * stage), {}};
  for (int expert = 0; expert < kExperts; ++expert) {
    weights.experts.push_back(weight({kWidth, kWidth}, 10 * stage + 1 + expert));
  }
  return weights;
}

at::Tensor dense(const Weights& weights, const at::Tensor& x) { return x + at::linear(at::tanh(x), weights.dense); }
at::Tensor expert(const at::Tensor& w, const at::Tensor& rows) { return at::gelu(at::linear(rows, w)); }

// {x, first}: the first `first` rows go to expert 0, the others to expert 1.
TensorList whole_forward(const Weights& weights, const TensorList& inputs) {
  const at::Tensor h = dense(weights, inputs.at(0));
  const std::int64_t first = inputs.at(1).item<std::int64_t>();
  const auto parts = h.split_with_sizes({first, h.size(0) - first});
  return {h + at::cat({expert(weights.experts[0], parts[0]), expert(weights.experts[1], parts[1])}), inputs.at(1)};
}

// {what arrives, ...what stands beside it}. What arrives requires grad where the rows do.
class AllToAll final : public PendingExchange {
 public:
  AllToAll(const Group& group, const at::Tensor& rows, std::vector<std::int64_t> sent,
           std::vector<std::int64_t> received, TensorList beside)
      : rows_(rows.contiguous()), sent_(std::move(sent)), received_(std::move(received)), result_(std::move(beside)) {
    std::vector<std::int64_t> sizes = rows_.sizes().vec();
    sizes[0] = std::accumulate(received_.begin(), received_.end(), std::int64_t{0});
    moved_ = at::empty(sizes, rows_.options()).set_requires_grad(rows.requires_grad());
    work_ = group->all_to_all_single(moved_, rows_, received_, sent_);
  }
  TensorList wait() override {
    if (!work_->wait()) throw std::runtime_error("the exchange was aborted");
    result_.insert(result_.begin(), moved_);
    return result_;
  }

 private:
  at::Tensor rows_;
  std::vector<std::int64_t> sent_;
  std::vector<std::int64_t> received_;
  at::Tensor moved_;
  TensorList result_;
  c10::intrusive_ptr<c10d::Work> work_;
};

// Between sizes and the end of a layer: {..., sent, received}, one count per expert rank each.
std::vector<std::int64_t> counts(const at::Tensor& tensor) {
  return {tensor.data_ptr<std::int64_t>(), tensor.data_ptr<std::int64_t>() + tensor.numel()};
}

struct Splits {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

Phase communication(const std::string& name, bool has_backward) {
  Phase phase;
  phase.spec.name = name;
  phase.spec.kind = PhaseKind::kCommunication;
  phase.spec.has_backward = has_backward;
  return phase;
}

// {h, first} -> {h, first, received, sent}; split sizes are an exchange of their own.
class SizesExchange final : public PendingExchange {
 public:
  SizesExchange(const Group& group, TensorList inputs) : inputs_(std::move(inputs)) {
    const std::int64_t first = inputs_.at(1).item<std::int64_t>();
    sent_ = at::tensor({first, inputs_[0].size(0) - first}, at::kLong);
    all_ = std::make_unique<AllToAll>(group, sent_, std::vector<std::int64_t>{1, 1}, std::vector<std::int64_t>{1, 1},
                                      TensorList{});
  }
  TensorList wait() override {
    TensorList result = inputs_;
    result.push_back(all_->wait().at(0));
    result.push_back(sent_);
    return result;
  }

 private:
  TensorList inputs_;
  at::Tensor sent_;
  std::unique_ptr<AllToAll> all_;
};

// {h, first, received, sent} -> {rows, h, first, received, sent}
Phase dispatch_phase(const Group& group) {
  Phase phase = communication("dispatch", true);
  phase.exchange = [group](const TensorList& t, PhaseContext& context) {
    const Splits splits{counts(t.at(3)), counts(t.at(2))};
    context.saved = splits;
    return std::make_unique<AllToAll>(group, t[0], splits.sent, splits.received, t);
  };
  // The rows came from h, which passed through as well.
  phase.exchange_back = [group](const TensorList& g, PhaseContext& context) {
    class Sum final : public PendingExchange {
     public:
      Sum(std::unique_ptr<AllToAll> rows, at::Tensor other) : rows_(std::move(rows)), other_(std::move(other)) {}
      TensorList wait() override { return {rows_->wait().at(0) + other_, {}, {}, {}}; }

     private:
      std::unique_ptr<AllToAll> rows_;
      at::Tensor other_;
    };
    const auto& splits = std::any_cast<const Splits&>(context.saved);
    return std::make_unique<Sum>(std::make_unique<AllToAll>(group, g.at(0), splits.received, splits.sent, TensorList{}),
                                 g.at(1));
  };
  return phase;
}

// {rows, h, first, received, sent} -> {rows, h, first}
Phase combine_phase(const Group& group) {
  Phase phase = communication("combine", true);
  phase.exchange = [group](const TensorList& t, PhaseContext& context) {
    const Splits splits{counts(t.at(4)), counts(t.at(3))};
    context.saved = splits;
    return std::make_unique<AllToAll>(group, t[0], splits.received, splits.sent, TensorList{t[1], t[2]});
  };
  phase.exchange_back = [group](const TensorList& g, PhaseContext& context) {
    const auto& splits = std::any_cast<const Splits&>(context.saved);
    return std::make_unique<AllToAll>(group, g.at(0), splits.sent, splits.received, TensorList{g.at(1), {}, {}, {}});
  };
  return phase;
}

std::vector<Phase> phases_of(const Weights& weights, const Group& experts) {
  const auto computing = [](const std::string& name, auto compute) {
    Phase phase;
    phase.spec.name = name;
    phase.compute = [compute](const TensorList& t, PhaseContext&) { return compute(t); };
    return phase;
  };
  Phase sizes = communication("sizes", false);
  sizes.exchange = [experts](const TensorList& t, PhaseContext&) {
    return std::make_unique<SizesExchange>(experts, t);
  };
  const at::Tensor mine = weights.experts[experts->getRank()];
  return {computing("dense",
                    [weights](const TensorList& t) {
                      return TensorList{dense(weights, t.at(0)), t.at(1)};
                    }),
          sizes,
          dispatch_phase(experts),
          computing("expert",
                    [mine](const TensorList& t) {
                      return TensorList{expert(mine, t.at(0)), t[1], t[2], t[3], t[4]};
                    }),
          combine_phase(experts),
          computing("sum", [](const TensorList& t) {
            return TensorList{t.at(1) + t.at(0), t.at(2)};
          })};
}

struct Batch {
  MicroBatches inputs;
  MicroBatches labels;
};

// Of one pipeline; the split of its rows differs, and is empty here and there. Of the last micro-batch no row goes to
// expert 0, from anywhere.
Batch batch_of(int pipeline) {
  Batch batch{random_micro_batches(kMicroBatches, {4, kWidth}, 20 + pipeline),
              random_micro_batches(kMicroBatches, {4, kWidth}, 30 + pipeline)};
  for (int k = 0; k < kMicroBatches; ++k) {
    const int first = k + 1 < kMicroBatches ? (3 * k + pipeline) % 5 : 0;
    batch.inputs[k].push_back(at::tensor({first}, at::kLong));
  }
  return batch;
}

// Gradients of the dense weights for one pipeline's data, of the experts' for both.
std::vector<Weights> oracle(const std::vector<int>& pipelines) {
  std::vector<Weights> all;
  std::vector<std::shared_ptr<StageModule>> stages;
  for (int stage = 0; stage < kRanks; ++stage) {
    all.push_back(weights_of(stage));
    const Weights& weights = all.back();
    stages.push_back(function_stage({{"dense", weights.dense}, {"0", weights.experts[0]}, {"1", weights.experts[1]}},
                                    [weights](const TensorList& t) { return whole_forward(weights, t); }));
  }
  for (int pipeline : pipelines) {
    const Batch batch = batch_of(pipeline);
    run_whole_model(stages, batch.inputs, batch.labels, Comparison::mean_square());
  }
  return all;
}

Group group_of(const Rank& rank, const std::string& name, int index, int size) {
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, rank.store);
  return make_gloo_group(store, index, size, std::chrono::seconds(30));
}

void run_pipelines(bool overlap) {
  const std::vector<Weights> both = oracle({0, 1});
  const std::vector<std::vector<Weights>> alone{oracle({0}), oracle({1})};
  run_gloo_ranks(kRanks * kExperts, [&](Rank& rank) {
    const int which = rank.index / kRanks;
    const int index = rank.index % kRanks;
    const Group pipe = group_of(rank, fmt::format("pipeline{}", which), index, kRanks);
    const Group experts = group_of(rank, fmt::format("experts{}", index), which, kExperts);
    std::vector<Weights> mine;
    std::vector<std::shared_ptr<StageModule>> stages;
    for (int stage : {index, kRanks - 1 - index}) {
      mine.push_back(weights_of(stage));
      stages.push_back(function_stage(
          {{"dense", mine.back().dense}, {"expert", mine.back().experts[which]}},
          [weights = mine.back()](const TensorList& t) { return whole_forward(weights, t); }, {},
          phases_of(mine.back(), experts)));
    }
    PipelineOptions options{.num_microbatches = kMicroBatches};
    options.overlap_phases = overlap;
    options.timeout = std::chrono::seconds(30);
    Pipeline pipeline("dualpipe", pipe, stages, options);
    const Batch batch = batch_of(which);
    const StepResult result =
        pipeline.step(select(batch.inputs, pipeline.input_micro_batches()),
                      select(batch.labels, pipeline.loss_micro_batches()), Comparison::mean_square());
    EXPECT_EQ(result.statistics.pairs_by_phases > 0, overlap);
    for (int i = 0; i < 2; ++i) {
      const int stage = pipeline.stages()[i];
      expect_close(mine[i].dense.grad(), alone[which][stage].dense.grad(), 1e-10, "dense");
      expect_close(mine[i].experts[which].grad(), both[stage].experts[which].grad(), 1e-10, "expert");
    }
  });
}

TEST(ExpertExchange, GivesTheGradientsOfOneProcessOverlapped) { run_pipelines(true); }
TEST(ExpertExchange, GivesTheGradientsOfOneProcessInSequence) { run_pipelines(false); }

}  // namespace
}  // namespace dualpipe
