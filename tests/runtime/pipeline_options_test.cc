// Options of a pipeline that change where gradients go, what is compared, and how pairs run.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <limits>
#include <map>
#include <mutex>

#include "plugin/runtime/optimizer_hook.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/runtime/comparison.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

TEST(MainGrads, ReceiveTheSumOverStepsInsteadOfGrad) {
  for (const std::string schedule : {"1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    const auto oracle = all_stages(comparison);
    for (int step = 0; step < 2; ++step) {
      run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    }
    run_ranks(2, [&](Rank& rank) {
      const auto stages = stages_of_rank(comparison, rank.index);
      std::map<std::string, at::Tensor> buffers;
      Comparison mine = comparison;
      const Placement placement = builtin_registry().make(schedule, {2, 4}).placement;
      const std::vector<int> numbers = placement.stages_of(rank.index);
      for (std::size_t i = 0; i < stages.size(); ++i) {
        for (const auto& item : stages[i]->named_parameters()) {
          buffers[stages[i]->logical_name(numbers[i], item.key())] = at::zeros_like(item.value().detach());
        }
      }
      mine.options.main_grads = buffers;
      Pipeline pipeline = make_pipeline(mine, rank, stages);
      train_once(mine, pipeline);
      train_once(mine, pipeline);
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const auto wanted = oracle[numbers[i]]->named_parameters();
        for (const auto& item : stages[i]->named_parameters()) {
          EXPECT_FALSE(item.value().grad().defined());
          expect_close(buffers.at(stages[i]->logical_name(numbers[i], item.key())), wanted[item.key()].grad(), 1e-10,
                       item.key());
        }
      }
    });
  }
}

// Each mirror has the gradients of the micro-batches that came through it.
TEST(ReduceMirrors, FalseLeavesEachMirrorItsHalf) {
  Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  const auto oracle = all_stages(comparison);
  run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  comparison.options.reduce_mirrors = false;
  std::vector<TensorList> by_stage(2);
  std::mutex mutex;
  run_ranks(2, [&](Rank& rank) {
    const auto stages = stages_of_rank(comparison, rank.index);
    Pipeline pipeline = make_pipeline(comparison, rank, stages);
    train_once(comparison, pipeline);
    EXPECT_FALSE(pipeline.reduces_mirrors());
    torch::optim::SGD optimizer(stages[0]->parameters(), 0.1);
    try {
      OptimizerHook hook(pipeline, optimizer);
      ADD_FAILURE() << "accepted";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("got reduce_mirrors = false"));
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      TensorList& sums = by_stage[pipeline.stages()[i]];
      const auto parameters = stages[i]->parameters();
      sums.resize(parameters.size());
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const at::Tensor half = parameters[p].grad();
        sums[p] = sums[p].defined() ? sums[p] + half : half;
      }
    }
  });
  for (int stage = 0; stage < 2; ++stage) {
    const auto wanted = oracle[stage]->parameters();
    for (std::size_t p = 0; p < wanted.size(); ++p) expect_close(by_stage[stage][p], wanted[p].grad(), 1e-10, "sum");
  }
}

TEST(OptimizerHook, RefusesAClipThatMeansNothing) {
  Comparison comparison = mlp_comparison("1f1b", 1, 2);
  run_ranks(1, [&](Rank& rank) {
    const auto stages = stages_of_rank(comparison, rank.index);
    Pipeline pipeline = make_pipeline(comparison, rank, stages);
    torch::optim::SGD optimizer(stages[0]->parameters(), 0.1);
    try {
      OptimizerHook hook(pipeline, optimizer, -1);
      ADD_FAILURE() << "accepted";
    } catch (const std::exception& error) {
      EXPECT_EQ(std::string(error.what()),
                "[optimizer_hook] clip_grad must be finite and at least 0 (no clipping), got -1; for example 1.0");
    }
  });
}

TEST(OptimizerHook, SkipsTheStepEverywhereWhereAnythingIsNotFinite) {
  Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  comparison.inputs[3] = {at::full({4, 8}, std::numeric_limits<double>::infinity(), at::kDouble)};
  run_ranks(2, [&](Rank& rank) {
    const auto stages = stages_of_rank(comparison, rank.index);
    Pipeline pipeline = make_pipeline(comparison, rank, stages);
    torch::optim::SGD optimizer(stages[0]->parameters(), 0.1);
    const at::Tensor before = stages[0]->parameters()[0].detach().clone();
    OptimizerHook hook(pipeline, optimizer, 1.0);
    train_once(comparison, pipeline);
    EXPECT_TRUE(hook.step().skipped);
    EXPECT_TRUE(at::equal(stages[0]->parameters()[0], before));
  });
}

TEST(Copies, ThatDifferAreRefusedAtTheFirstStep) {
  Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  for (const auto& error : errors_of_ranks(2, [&](Rank& rank) {
         auto stages = stages_of_rank(comparison, rank.index);
         if (rank.index == 1) stages[0] = mlp_stage(7);  // Stage 1 of rank 1 from another seed than that of rank 0.
         Pipeline pipeline = make_pipeline(comparison, rank, stages);
         train_once(comparison, pipeline);
       })) {
    EXPECT_THAT(error.value_or(""), HasSubstr("must start with the same values (one seed, one checkpoint)"));
  }
}

// The embedding of the first stage is the head of the last, as two copies with one name.
TEST(TiedWeights, OnTwoRanksGetTheSumOfBothGradients) {
  class Tied final : public StageModule {
   public:
    Tied(int stage, int stages) : stage_(stage), last_(stage == stages - 1) {
      weight_ = register_parameter("w", weight({8, 8}, stage == stages - 1 ? 0 : stage));
    }
    TensorList forward(const TensorList& inputs) override { return {at::linear(inputs.at(0), weight_).tanh()}; }
    std::string logical_name(int stage, const std::string& name) const override {
      return last_ ? "shared" : stage_ == 0 ? "shared" : StageModule::logical_name(stage, name);
    }

   private:
    int stage_;
    bool last_;
    at::Tensor weight_;
  };
  for (const std::string schedule : {"1f1b", "zb1p", "interleaved_1f1b"}) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    comparison.make = [](int stage, int stages) { return std::make_shared<Tied>(stage, stages); };
    const auto oracle = all_stages(comparison);
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    const at::Tensor wanted = oracle.front()->parameters()[0].grad() + oracle.back()->parameters()[0].grad();
    run_ranks(2, [&](Rank& rank) {
      const auto stages = stages_of_rank(comparison, rank.index);
      Pipeline pipeline = make_pipeline(comparison, rank, stages);
      train_once(comparison, pipeline);
      const auto& mine = rank.index == 0 ? stages.front() : stages.back();
      expect_close(mine->parameters()[0].grad(), wanted, 1e-10, schedule);
    });
  }
}

TEST(Failures, CallOnFatalOnceOnEveryRank) {
  Comparison comparison = mlp_comparison("1f1b", 2, 4);
  std::atomic<int> calls[2] = {0, 0};
  errors_of_ranks(2, [&](Rank& rank) {
    PipelineOptions options = comparison.options;
    options.failures = rank.failures;
    options.on_fatal = [&, index = rank.index](const FailureRecord& record) {
      ++calls[index];
      EXPECT_EQ(record.rank, 1);
      EXPECT_EQ(record.cause, "broken");
      if (index == 0) rank.transport->abort(record.to_string());
    };
    auto stage = rank.index == 0
                     ? mlp_stage(0)
                     : function_stage({}, [](const TensorList&) -> TensorList { throw std::runtime_error("broken"); });
    Pipeline pipeline("1f1b", rank.transport, {stage}, options);
    train_once(comparison, pipeline);
  });
  EXPECT_EQ(calls[0], 1);
  EXPECT_EQ(calls[1], 1);
}

TEST(Deferred, EvaluationWaitsForTheGradientsAndTheStatisticsHoldTheTail) {
  Comparison comparison = mlp_comparison("dualpipe", 2, 6);
  comparison.options.defer_tail_weight_gradients = true;
  const Schedule plan = builtin_registry().make("dualpipe", {2, 6});
  run_ranks(2, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    train_once(comparison, pipeline);
    pipeline.finish_gradients();
    Row ran;
    for (const Span& span : pipeline.statistics().spans) ran.push_back(span.action);
    EXPECT_EQ(print_row(ran), print_row(plan.rows[rank.index]));
    pipeline.evaluate(select(comparison.inputs, pipeline.input_micro_batches()),
                      MicroBatches(pipeline.loss_micro_batches().size()));
  });
  for (const auto& error : errors_of_ranks(2, [&](Rank& rank) {
         Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
         train_once(comparison, pipeline);
         pipeline.evaluate(select(comparison.inputs, pipeline.input_micro_batches()),
                           MicroBatches(pipeline.loss_micro_batches().size()));
       })) {
    EXPECT_THAT(error.value_or(""), HasSubstr("the last step's gradients are not final"));
  }
}

// Micro-batch 1 weighs nothing; in the second case none does.
TEST(Weights, OfNothingGiveNoLossAndNoGradient) {
  for (bool all : {false, true}) {
    Comparison comparison = mlp_comparison("dualpipe", 2, 4);
    comparison.options.mean_loss_on_every_rank = true;
    for (int k = 0; k < 4; ++k) comparison.labels[k].push_back(at::full({}, all || k == 1 ? 0.0 : 2.0, at::kDouble));
    comparison.criterion = Criterion::sum(
        [](const TensorList& outputs, const TensorList& labels) {
          return ((outputs.at(0) - labels.at(0)).square() * labels.at(1)).sum();
        },
        [](const TensorList& labels) { return labels.at(1).item<double>(); });
    run_ranks(2, [&](Rank& rank) {
      const auto stages = stages_of_rank(comparison, rank.index);
      Pipeline pipeline = make_pipeline(comparison, rank, stages);
      const StepResult result = train_once(comparison, pipeline);
      EXPECT_EQ(*result.mean_loss == 0, all);
      for (std::size_t i = 0; i < result.losses.size(); ++i) {
        const bool weightless = all || pipeline.loss_micro_batches()[i] == 1;
        EXPECT_EQ(result.losses[i].item<double>() == 0, weightless);
      }
      EXPECT_EQ(stages[0]->parameters()[0].grad().norm().item<double>() == 0, all);
    });
  }
}

// A hook on every stage; activations, a scalar that needs a gradient, and a mask cross the boundaries.
TEST(Hooks, RunPairsOfStagesWithSeveralOutputs) {
  const OverlapHook hook = [](StageModule& module0, const TensorList& inputs0, const Criterion* criterion0,
                              const TensorList& labels0, StageModule&, const at::Tensor& loss1,
                              const TensorList& outputs1, const TensorList& grads1) -> OverlapResult {
    TensorList outputs0 = module0.forward(inputs0);
    const at::Tensor loss0 = criterion0 ? criterion0->loss(outputs0, labels0) : at::Tensor();
    if (loss1.defined()) {
      loss1.backward();
    } else {
      TensorList roots;
      TensorList gradients;
      for (std::size_t i = 0; i < outputs1.size(); ++i) {
        if (!grads1[i].defined()) continue;
        roots.push_back(outputs1[i]);
        gradients.push_back(grads1[i]);
      }
      torch::autograd::backward(roots, gradients);
    }
    return {outputs0, loss0};
  };
  for (bool over_gloo : {false, true}) {
    for (const std::string schedule : {"dualpipe", "dualpipev"}) {
      Comparison comparison = mlp_comparison(schedule, 4, 8);
      comparison.over_gloo = over_gloo;
      comparison.make = [&](int stage, int stages) {
        const at::Tensor w = weight({8, 8}, stage);
        return function_stage(
            {{"w", w}},
            [=](const TensorList& inputs) {
              at::Tensor h = at::linear(inputs.at(0), w);
              at::Tensor side = h.square().mean();
              if (stage > 0) {
                h = h * inputs.at(2);
                side = side + inputs.at(1);
              }
              if (stage == stages - 1) return TensorList{h + side};
              return TensorList{h, side, at::ones({8}, at::kInt)};
            },
            hook);
      };
      comparison.check = [](Rank&, Pipeline&, const StepResult& result) {
        EXPECT_GT(result.statistics.overlapped_pairs, 0);
        EXPECT_TRUE(result.statistics.sequential_pairs.empty());
      };
      expect_like_whole_model(comparison);
    }
  }
}

}  // namespace
}  // namespace dualpipe
