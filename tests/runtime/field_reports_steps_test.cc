// Reports about hangs, shapes, memory, losses and hooks elsewhere. The number is the report's.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <malloc.h>
#include <atomic>
#include <barrier>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/allocator_interface.h>
#endif

#include "plugin/analysis/simulate.h"
#include "plugin/runtime/optimizer_hook.h"
#include "plugin/schedule/registry.h"
#include "tests/runtime/comparison.h"
#include "tests/runtime/counted.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

// A linear stage, for boundaries of more than one tensor.
std::shared_ptr<StageModule> linear_stage(int stage, std::function<TensorList(const TensorList&, at::Tensor)> outputs) {
  const at::Tensor w = weight({8, 8}, stage);
  return function_stage({{"w", w}},
                        [=](const TensorList& inputs) { return outputs(inputs, at::linear(inputs.at(0), w)); });
}

// --- messages and shapes

TEST(FieldReport10, TwoTensorsOfDifferentSizeCrossOverGloo) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 4, 8);
    comparison.over_gloo = true;
    comparison.make = [](int stage, int stages) {
      return linear_stage(stage, [=](const TensorList& inputs, at::Tensor h) {
        if (stage > 0) h = h + inputs.at(1).sum();
        return stage == stages - 1 ? TensorList{h} : TensorList{h, h.narrow(1, 0, 3).square()};
      });
    };
    expect_like_whole_model(comparison);
  }
}

TEST(FieldReport13, OneMicroBatchFinishesOrIsRefused) {
  for (const std::string schedule : {"1f1b", "zb1p"}) {
    for (int ranks : {2, 4}) expect_like_whole_model(mlp_comparison(schedule, ranks, 1));
  }
  for (const std::string schedule : {"dualpipe", "dualpipev"}) {
    Comparison comparison = mlp_comparison("1f1b", 2, 1);
    comparison.schedule = schedule;
    const auto errors = errors_of_ranks(2, [&](Rank& rank) {
      Pipeline(schedule, rank.transport, {mlp_stage(0), mlp_stage(1)}, {.num_microbatches = 1});
    });
    for (const auto& error : errors) EXPECT_THAT(error.value_or(""), testing::HasSubstr("num_microbatches"));
  }
}

TEST(FieldReport14, FewerMicroBatchesThanStages) {
  expect_like_whole_model(mlp_comparison("1f1b", 4, 2));
  expect_like_whole_model(mlp_comparison("zb1p", 4, 3));
  expect_like_whole_model(mlp_comparison("dualpipev", 4, 9));
  const auto refused = [](const std::string& schedule, int num_microbatches) {
    return errors_of_ranks(4, [&](Rank& rank) {
      Pipeline(schedule, rank.transport, {mlp_stage(0), mlp_stage(1)}, {.num_microbatches = num_microbatches});
    });
  };
  for (const auto& error : refused("dualpipe", 6)) {
    EXPECT_THAT(error.value_or(""), testing::HasSubstr("num_microbatches must be at least 2 x ranks = 8, got 6"));
  }
  for (const auto& error : refused("dualpipev", 7)) {
    EXPECT_THAT(error.value_or(""), testing::HasSubstr("num_microbatches must be at least 2 x ranks = 8, got 7"));
  }
}

// A float tensor that never needed a gradient crosses one way alone.
TEST(FieldReport16, OnlyGradientsThatAreNeededComeBack) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    comparison.make = [](int stage, int stages) {
      return linear_stage(stage, [=](const TensorList& inputs, at::Tensor h) {
        const at::Tensor mask = stage == 0 ? at::ones({4, 1}, at::kInt) : inputs.at(1);
        const at::Tensor rotary = stage == 0 ? at::arange(8, at::kDouble) : inputs.at(2);
        h = h * mask + rotary;
        return stage == stages - 1 ? TensorList{h} : TensorList{h, mask, rotary};
      });
    };
    comparison.check = [](Rank& rank, Pipeline& pipeline, const StepResult& result) {
      if (pipeline.schedule() != "1f1b") return;
      // Rank 0: an activation and the first one's envelope; rank 1: one gradient of 4 x 8 float64 per micro-batch.
      EXPECT_EQ(result.statistics.messages_sent, rank.index == 0 ? 5u : 4u);
      if (rank.index == 1) {
        EXPECT_EQ(result.statistics.bytes_sent, 4u * 4 * 8 * 8);
      }
    };
    expect_like_whole_model(comparison);
  }
}

TEST(FieldReport19, RowsThatDoNotDivide) {
  const at::Tensor rows = random_micro_batches(1, {10, 8}, 5)[0][0];
  const at::Tensor labels = random_micro_batches(1, {10, 8}, 6)[0][0];
  Comparison comparison = mlp_comparison("1f1b", 2, 4);
  const auto step = [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    pipeline.step(rank.index == 0 ? TensorList{rows} : TensorList{},
                  rank.index == 1 ? TensorList{labels} : TensorList{}, comparison.criterion);
  };
  const auto errors = errors_of_ranks(2, step);
  for (const auto& error : errors) {
    EXPECT_THAT(error.value_or(""), testing::HasSubstr("10 rows do not divide into 4 micro-batches"));
  }
  comparison.options.variable_seq_lengths = true;
  comparison.inputs = split_rows({rows}, 4);
  comparison.labels = split_rows({labels}, 4);
  EXPECT_EQ(comparison.inputs[0][0].size(0), 3);
  EXPECT_EQ(comparison.inputs[3][0].size(0), 2);
  expect_like_whole_model(comparison);
}

TEST(FieldReport20, AnotherLengthInTheSecondStep) {
  const auto run = [](bool variable, Rank& rank) {
    Comparison comparison = mlp_comparison("dualpipe", 2, 4);
    comparison.options.variable_seq_lengths = variable;
    const auto stages = stages_of_rank(comparison, rank.index);
    const auto oracle = all_stages(comparison);
    Pipeline pipeline = make_pipeline(comparison, rank, stages);
    for (int length : {128, 129, 128}) {
      comparison.inputs = random_micro_batches(4, {length, 8}, length);
      comparison.labels = random_micro_batches(4, {length, 8}, length + 1);
      train_once(comparison, pipeline);
      run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto wanted = oracle[pipeline.stages()[i]]->parameters();
      for (std::size_t p = 0; p < wanted.size(); ++p) {
        expect_close(stages[i]->parameters()[p].grad(), wanted[p].grad(), 1e-10, "gradient");
      }
    }
  };
  run_ranks(2, [&](Rank& rank) { run(true, rank); });
  for (const auto& error : errors_of_ranks(2, [&](Rank& rank) { run(false, rank); })) {
    EXPECT_THAT(error.value_or(""), testing::HasSubstr("agreed float64 [128, 8] with gradient, given float64 [129, 8] "
                                                       "with gradient; set variable_seq_lengths: true"));
  }
}

// --- memory

// Bytes in use: resident bytes would count the allocator's reserve too, which depends on the timing of threads.
std::size_t bytes_in_use() {
#ifdef __SANITIZE_ADDRESS__
  return __sanitizer_get_current_allocated_bytes();
#else
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

// Measures where no rank is in the middle of a step.
class QuietMemory {
 public:
  explicit QuietMemory(int ranks) : quiet_(ranks) {}
  // Called by every rank between two steps.
  void measure(const Rank& rank, std::size_t& bytes) {
    quiet_.arrive_and_wait();
    if (rank.index == 0) bytes = bytes_in_use();
    quiet_.arrive_and_wait();
  }

 private:
  std::barrier<> quiet_;
};

TEST(FieldReport34, WhatIsReturnedKeepsNothingAlive) {
  Comparison comparison = mlp_comparison("zb1p", 2, 8);
  run_ranks(2, [&](Rank& rank) {
    auto alive = std::make_shared<std::atomic<int>>(0);
    const at::Tensor w = weight({8, 8}, rank.index);
    auto stage = function_stage({{"w", w}}, [=](const TensorList& inputs) {
      return TensorList{at::linear(inputs.at(0), w) * counted(inputs.at(0), alive)};
    });
    Pipeline pipeline = make_pipeline(comparison, rank, {stage});
    StepResult kept;
    for (int step = 0; step < 30; ++step) {
      kept = pipeline.step(select(comparison.inputs, pipeline.input_micro_batches()),
                           select(comparison.labels, pipeline.loss_micro_batches()), comparison.criterion, true);
      EXPECT_EQ(*alive, 0) << step;
      for (const at::Tensor& loss : kept.losses) EXPECT_FALSE(loss.grad_fn());
      for (const TensorList& outputs : kept.outputs) EXPECT_FALSE(outputs[0].grad_fn());
    }
  });
}

TEST(FieldReport35, MemoryDoesNotGrow) {
  Comparison comparison = mlp_comparison("dualpipev", 2, 8);
  comparison.inputs = random_micro_batches(8, {1 << 15, 16}, 3);  // 4 MB each.
  comparison.labels = random_micro_batches(8, {1 << 15, 16}, 4);
  comparison.make = [](int stage, int) {
    const at::Tensor scale = weight({16}, stage);
    return function_stage({{"scale", scale}}, [scale](const TensorList& x) { return TensorList{x.at(0) * scale}; });
  };
  std::size_t after_five = 0;
  std::size_t after_all = 0;
  QuietMemory memory(2);
  run_ranks(2,
            [&](Rank& rank) {
              Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
              for (int step = 0; step < 100; ++step) {
                train_once(comparison, pipeline);
                EXPECT_EQ(pipeline.pending_weight_gradients(), "");
                if (step == 5) memory.measure(rank, after_five);
                if (step == 99) memory.measure(rank, after_all);
              }
            },
            {.bound = std::chrono::minutes(4)});  // Large blocks are slow under a sanitizer.
  EXPECT_GT(after_five, std::size_t{64} << 20);   // Inputs and labels at least: the measure sees tensors.
  EXPECT_LT(static_cast<double>(after_all), 1.01 * static_cast<double>(after_five));
}

TEST(MemoryOverManySteps, StaysFlat) {
  Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  std::size_t early = 0;
  std::size_t late = 0;
  QuietMemory memory(2);
  run_ranks(2, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    for (int step = 0; step < 1000; ++step) {
      train_once(comparison, pipeline);
      if (step == 200) memory.measure(rank, early);
      if (step == 999) memory.measure(rank, late);
    }
  });
  EXPECT_LT(late, early + (1u << 20));
}

// Outputs are freed once sent, not before: 200 activations of 16 MiB, filled with their number, to a receiver that is
// slow now and then.
TEST(FieldReport37, NothingIsFreedWhileItIsSent) {
  constexpr int kMicroBatches = 200;
  Comparison comparison = mlp_comparison("1f1b", 2, kMicroBatches);
  comparison.over_gloo = true;
  for (int k = 0; k < kMicroBatches; ++k) {
    comparison.inputs[k] = {at::full({1}, k + 1, at::kFloat)};
    comparison.labels[k] = comparison.inputs[k];
  }
  std::atomic<int> wrong = 0;
  run_on_ranks(comparison, [&](Rank& rank) {
    const at::Tensor one = at::ones({1}, at::kFloat).requires_grad_();
    const auto send = [one](const TensorList& x) { return TensorList{(x.at(0) * one).repeat({4 << 20})}; };
    const auto receive = [one, &wrong, calls = std::make_shared<int>(0)](const TensorList& x) {
      if (++*calls % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const at::Tensor values = x.at(0).detach();
      if (values.min().item<float>() != values.max().item<float>()) ++wrong;
      return TensorList{x.at(0).narrow(0, 0, 1) * one};
    };
    const auto stage = rank.index == 0 ? function_stage({{"one", one}}, send) : function_stage({{"one", one}}, receive);
    Pipeline pipeline = make_pipeline(comparison, rank, {stage});
    const StepResult result = train_once(comparison, pipeline);
    for (const at::Tensor& loss : result.losses) EXPECT_EQ(loss.item<float>(), 0);  // Each number arrived as it is.
  });
  EXPECT_EQ(wrong, 0);
}

// Live tensors, counted where they are freed, against the simulator.
TEST(FieldReport40, LiveActivationsPeakAtTheSimulatorsFigure) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 4, 16);
    const Schedule plan = builtin_registry().make(schedule, {4, 16, 2});
    const std::vector<int> peaks = peak_activations(plan);
    if (schedule == "dualpipe") {
      for (int peak : peaks) EXPECT_LE(peak, 5);
    }
    run_ranks(4, [&](Rank& rank) {
      auto alive = std::make_shared<std::atomic<int>>(0);
      std::atomic<int> peak = 0;
      std::vector<std::shared_ptr<StageModule>> stages;
      for (int stage : plan.placement.stages_of(rank.index)) {
        const at::Tensor w = weight({8, 8}, stage);
        stages.push_back(function_stage({{"w", w}}, [=, &peak](const TensorList& inputs) {
          // The weight product needs the counted copy: it lives from F to the end of B or W.
          const at::Tensor saved = counted(inputs.at(0), alive);
          peak = std::max<int>(peak, *alive);
          return TensorList{at::linear(saved, w) + inputs.at(0)};
        }));
      }
      Pipeline pipeline = make_pipeline(comparison, rank, stages);
      const StepResult result = train_once(comparison, pipeline);
      EXPECT_EQ(peak, peaks[rank.index]) << schedule << " rank " << rank.index;
      EXPECT_EQ(result.statistics.peak_activations, peaks[rank.index]);
      EXPECT_EQ(*alive, 0);
    });
  }
}

// --- evaluation, losses, hooks

TEST(FieldReport50, EvaluationAndTrainingInAnyOrder) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    const auto oracle = all_stages(comparison);
    const WholeModelResult wanted = run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    run_ranks(2, [&](Rank& rank) {
      const auto stages = stages_of_rank(comparison, rank.index);
      Pipeline pipeline = make_pipeline(comparison, rank, stages);
      for (int round = 0; round < 2; ++round) {
        const StepResult result =
            pipeline.evaluate(select(comparison.inputs, pipeline.input_micro_batches()),
                              select(comparison.labels, pipeline.loss_micro_batches()), comparison.criterion);
        const std::vector<int> mine = pipeline.loss_micro_batches();
        ASSERT_EQ(result.outputs.size(), mine.size());
        for (std::size_t i = 0; i < mine.size(); ++i) {
          expect_close(result.losses[i], wanted.losses[mine[i]], 1e-12, "loss");
          expect_close(result.outputs[i][0], wanted.outputs[mine[i]][0], 1e-12, "output");
          EXPECT_FALSE(result.outputs[i][0].requires_grad());
        }
        if (round == 0) {
          EXPECT_FALSE(stages[0]->parameters()[0].grad().defined());
        }
        train_once(comparison, pipeline);
      }
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const auto reference = oracle[pipeline.stages()[i]]->parameters();
        for (std::size_t p = 0; p < reference.size(); ++p) {
          expect_close(stages[i]->parameters()[p].grad(), reference[p].grad(), 1e-10, "gradient");
        }
      }
    });
  }
}

TEST(FieldReport55, LossesAreWhereTheHeaderSays) {
  const std::map<std::string, std::set<int>> owners{
      {"1f1b", {3}}, {"zb1p", {3}}, {"interleaved_1f1b", {3}}, {"dualpipe", {0, 3}}, {"dualpipev", {0}}};
  for (const auto& [schedule, ranks] : owners) {
    Comparison comparison = mlp_comparison(schedule, 4, 8);
    const double wanted =
        run_whole_model(all_stages(comparison), comparison.inputs, comparison.labels, comparison.criterion).global_loss;
    for (bool everywhere : {false, true}) {
      comparison.options.mean_loss_on_every_rank = everywhere;
      run_ranks(4, [&, owned = ranks](Rank& rank) {
        Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
        const StepResult result = train_once(comparison, pipeline);
        const std::size_t count = owned.contains(rank.index) ? 8 / owned.size() : 0;
        EXPECT_EQ(result.losses.size(), count) << pipeline.schedule();
        EXPECT_EQ(result.mean_loss.has_value(), everywhere);
        if (everywhere) {
          EXPECT_NEAR(*result.mean_loss, wanted, 1e-12);
        }
      });
    }
  }
}

// A rank whose stages train nothing takes part in every collective.
TEST(FieldReport82, StagesWithoutTrainableParameters) {
  for (const std::string schedule : {"1f1b", "zb1p", "dualpipe"}) {
    Comparison comparison = mlp_comparison(schedule, 4, 8);
    comparison.make = [](int stage, int) {
      if (stage == 1)
        return function_stage({}, [](const TensorList& inputs) { return TensorList{inputs.at(0).relu()}; });
      const at::Tensor w = stage == 2 ? weight({8, 8}, stage).detach() : weight({8, 8}, stage);
      return function_stage({{"w", w}},
                            [=](const TensorList& inputs) { return TensorList{at::linear(inputs.at(0), w)}; });
    };
    expect_like_whole_model(comparison);
    run_ranks(4, [&](Rank& rank) {
      const auto stages = stages_of_rank(comparison, rank.index);
      Pipeline pipeline = make_pipeline(comparison, rank, stages);
      std::vector<at::Tensor> trained;
      for (const StageParameter& parameter : pipeline.parameters()) trained.push_back(parameter.parameter);
      torch::optim::SGD optimizer(trained, 0.1);
      OptimizerHook hook(pipeline, optimizer, 0.5);
      train_once(comparison, pipeline);
      const OptimizerStep step = hook.step();
      EXPECT_GT(step.grad_norm, 0);
      EXPECT_FALSE(step.skipped);
    });
  }
}

// How often a hook ran, by what it is offered on.
TEST(FieldReport85, TheHookIsUsedOrItIsSaidWhyNot) {
  struct Case {
    std::string name;
    std::function<bool(int stage)> offers;
    std::string reason;
  };
  const std::vector<Case> cases{
      {"on all", [](int) { return true; }, ""},
      {"on one", [](int stage) { return stage == 0; }, "stage 1 offers no overlapped_forward_backward"},
      {"on none", [](int) { return false; }, "stages 0 and 1 offer neither overlapped_forward_backward nor phases"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    auto calls = std::make_shared<std::atomic<int>>(0);
    const OverlapHook hook = [calls](StageModule& module0, const TensorList& inputs0, const Criterion* criterion0,
                                     const TensorList& labels0, StageModule&, const at::Tensor& loss1,
                                     const TensorList& outputs1, const TensorList& grads1) -> OverlapResult {
      ++*calls;
      TensorList outputs0 = module0.forward(inputs0);
      const at::Tensor loss0 = criterion0 ? criterion0->loss(outputs0, labels0) : at::Tensor();
      loss1.defined() ? loss1.backward() : torch::autograd::backward(outputs1, grads1);
      return {outputs0, loss0};
    };
    Comparison comparison = mlp_comparison("dualpipev", 1, 4);
    comparison.make = [&](int stage, int) {
      const at::Tensor w = weight({8, 8}, stage);
      return function_stage(
          {{"w", w}}, [w](const TensorList& inputs) { return TensorList{at::linear(inputs.at(0), w)}; },
          c.offers(stage) ? hook : OverlapHook());
    };
    const Schedule plan = builtin_registry().make("dualpipev", {1, 4});
    int pairs = 0;
    for (const Action& action : plan.rows[0]) pairs += action.is_overlap();
    ASSERT_GT(pairs, 0);
    comparison.check = [&](Rank&, Pipeline&, const StepResult& result) {
      const int overlapped = c.reason.empty() ? pairs : 0;
      EXPECT_EQ(result.statistics.overlapped_pairs, overlapped);
      EXPECT_EQ(*calls, overlapped);
      EXPECT_EQ(result.statistics.overlap_summary(),
                c.reason.empty() ? fmt::format("{0} of {0} pairs overlapped", pairs)
                                 : fmt::format("0 of {0} pairs overlapped; {0} in sequence: {1}", pairs, c.reason));
    };
    expect_like_whole_model(comparison);
  }
}

class OtherStage final : public StageModule {
 public:
  explicit OtherStage(std::shared_ptr<StageModule> inner) : inner_(register_module("inner", std::move(inner))) {}
  TensorList forward(const TensorList& inputs) override { return inner_->forward(inputs); }
  OverlapHook overlapped_forward_backward() override {
    return [](StageModule&, const TensorList&, const Criterion*, const TensorList&, StageModule&, const at::Tensor&,
              const TensorList&, const TensorList&) -> OverlapResult { throw std::runtime_error("not for this pair"); };
  }

 private:
  std::shared_ptr<StageModule> inner_;
};

TEST(FieldReport85, TwoTypesRunInSequence) {
  Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  comparison.make = [](int stage, int) -> std::shared_ptr<StageModule> {
    const at::Tensor w = weight({8, 8}, stage);
    const OverlapHook hook = OtherStage(mlp_stage(0)).overlapped_forward_backward();
    auto plain = function_stage(
        {{"w", w}}, [w](const TensorList& x) { return TensorList{at::linear(x.at(0), w)}; }, hook);
    return stage == 0 ? plain : std::make_shared<OtherStage>(plain);
  };
  comparison.check = [](Rank&, Pipeline&, const StepResult& result) {
    EXPECT_EQ(result.statistics.overlapped_pairs, 0);
    EXPECT_THAT(result.statistics.overlap_summary(), testing::HasSubstr("stages 0 and 1 are of different types"));
  };
  expect_like_whole_model(comparison);
}

// Ten steps, each forward with the weights of the step before.
TEST(FieldReport88, EveryStepUsesTheNewWeights) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    comparison.options.mean_loss_on_every_rank = true;
    const auto oracle = all_stages(comparison);
    std::vector<at::Tensor> all;
    for (const auto& stage : oracle) {
      for (const at::Tensor& parameter : stage->parameters()) all.push_back(parameter);
    }
    torch::optim::SGD whole(all, 0.1);
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) {
      whole.zero_grad();
      losses.push_back(run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion).global_loss);
      whole.step();
    }
    for (bool deferred : {false, true}) {
      comparison.options.defer_tail_weight_gradients = deferred;
      run_ranks(2, [&](Rank& rank) {
        Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
        std::vector<at::Tensor> parameters;
        for (const StageParameter& parameter : pipeline.parameters()) parameters.push_back(parameter.parameter);
        torch::optim::SGD optimizer(parameters, 0.1);
        OptimizerHook hook(pipeline, optimizer);
        for (int step = 0; step < 10; ++step) {
          EXPECT_NEAR(*train_once(comparison, pipeline).mean_loss, losses[step], 1e-10 * losses[step]) << step;
          hook.step();
          EXPECT_EQ(pipeline.pending_weight_gradients(), "");
          optimizer.zero_grad();
        }
      });
    }
  }
}

TEST(DeferredWeightGradients, AStepPastThemIsRefusedWithWhatIsPending) {
  Comparison comparison = mlp_comparison("zb1p", 2, 4);
  comparison.options.defer_tail_weight_gradients = true;
  const auto errors = errors_of_ranks(2, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    train_once(comparison, pipeline);
    EXPECT_THAT(pipeline.pending_weight_gradients(), testing::HasSubstr("stage"));
    train_once(comparison, pipeline);
  });
  EXPECT_THAT(errors[0].value_or(""), testing::HasSubstr("the last step's gradients are not final (pending: stage 0"));
  EXPECT_THAT(errors[1].value_or(""), testing::HasSubstr("the last step's gradients are not final (pending: stage 1"));
}

}  // namespace
}  // namespace dualpipe
