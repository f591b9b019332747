// Reports of wrong gradients elsewhere, as cases beside the whole model. The number is the report's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <mutex>
#include <stdexcept>

#include "plugin/runtime/optimizer_hook.h"
#include "tests/runtime/comparison.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

// One W object at two places of one path.
TEST(FieldReport01, AWeightUsedTwiceGetsItsGradientOnce) {
  for (const std::string schedule : {"zb1p", "dualpipev"}) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    comparison.make = [](int stage, int) {
      const at::Tensor w = weight({8, 8}, stage);
      return function_stage({{"w", w}},
                            [w](const TensorList& inputs) { return TensorList{inputs.at(0).matmul(w).matmul(w)}; });
    };
    expect_like_whole_model(comparison);
  }
}

TEST(FieldReport02, OutputsOfOneNodeKeepTheirOwnGradients) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{8, 8}, {5, 3}}) {
    Comparison comparison = mlp_comparison("zb1p", 2, 4);
    comparison.make = [sizes](int stage, int) {
      const at::Tensor w = weight({sizes[0] + sizes[1], 8}, stage);
      const at::Tensor back = weight({8, sizes[1]}, stage + 50);
      return function_stage({{"w", w}, {"back", back}}, [=](const TensorList& inputs) {
        const auto parts = at::linear(inputs.at(0), w).split_with_sizes(sizes, 1);
        return TensorList{at::relu(parts[0]).sum(1, true) + 3 * at::tanh(at::linear(parts[1], back))};
      });
    };
    expect_like_whole_model(comparison);
  }
}

// Three steps on different data, nothing zeroed in between, and the norm of what has come together.
TEST(FieldReport04, GradientsOfThreeStepsAreTheirSum) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    const auto oracle = all_stages(comparison);
    std::vector<Comparison> steps(3, comparison);
    for (int step = 0; step < 3; ++step) {
      steps[step].inputs = random_micro_batches(4, {4, 8}, 20 + step);
      run_whole_model(oracle, steps[step].inputs, comparison.labels, comparison.criterion);
    }
    double squares = 0;
    for (const auto& stage : oracle) {
      for (const at::Tensor& parameter : stage->parameters()) squares += parameter.grad().square().sum().item<double>();
    }
    run_ranks(2, [&](Rank& rank) {
      const auto stages = stages_of_rank(comparison, rank.index);
      Pipeline pipeline = make_pipeline(comparison, rank, stages);
      torch::optim::SGD idle({at::zeros({1}, at::kDouble).requires_grad_()}, 0.1);
      OptimizerHook hook(pipeline, idle);
      for (const Comparison& step : steps) {
        pipeline.step(select(step.inputs, pipeline.input_micro_batches()),
                      select(step.labels, pipeline.loss_micro_batches()), step.criterion);
      }
      EXPECT_NEAR(hook.step().grad_norm, std::sqrt(squares), 1e-10 * std::sqrt(squares)) << schedule;
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const auto wanted = oracle[pipeline.stages()[i]]->parameters();
        for (std::size_t p = 0; p < wanted.size(); ++p) {
          expect_close(stages[i]->parameters()[p].grad(), wanted[p].grad(), 1e-10, schedule);
        }
      }
    });
  }
}

// The same 32 rows in 4 and in 16 micro-batches.
TEST(FieldReport05, GradientsDoNotDependOnTheNumberOfMicroBatches) {
  const at::Tensor rows = random_micro_batches(1, {32, 8}, 5)[0][0];
  const at::Tensor labels = random_micro_batches(1, {32, 8}, 6)[0][0];
  for (const std::string& schedule : all_schedules()) {
    std::vector<TensorList> gradients;
    for (int num_microbatches : {4, 16}) {
      Comparison comparison = mlp_comparison(schedule, 2, num_microbatches);
      comparison.inputs = split_rows({rows}, num_microbatches);
      comparison.labels = split_rows({labels}, num_microbatches);
      comparison.check = [&](Rank& rank, Pipeline& pipeline, const StepResult&) {
        if (rank.index != 0) return;
        TensorList flat;
        for (const StageParameter& parameter : pipeline.parameters())
          flat.push_back(parameter.parameter.grad().clone());
        gradients.push_back(flat);
      };
      expect_like_whole_model(comparison);
    }
    ASSERT_EQ(gradients.size(), 2u);
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      expect_close(gradients[1][i], gradients[0][i], 1e-10, schedule);
    }
  }
}

// Mirrors step alike, through the hook, and like one process.
TEST(FieldReport08, MirrorsStayEqualToTheBit) {
  Comparison comparison = mlp_comparison("dualpipe", 4, 8);
  const auto oracle = all_stages(comparison);
  std::vector<at::Tensor> all;
  for (const auto& stage : oracle) {
    for (const at::Tensor& parameter : stage->parameters()) all.push_back(parameter);
  }
  torch::optim::SGD whole(all, 0.1);
  for (int step = 0; step < 5; ++step) {
    whole.zero_grad();
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    whole.step();
  }
  std::vector<std::vector<std::shared_ptr<StageModule>>> by_rank(4);
  run_ranks(4, [&](Rank& rank) {
    const auto stages = by_rank[rank.index] = stages_of_rank(comparison, rank.index);
    Pipeline pipeline = make_pipeline(comparison, rank, stages);
    std::vector<at::Tensor> parameters = stages[0]->parameters();
    for (const at::Tensor& parameter : stages[1]->parameters()) parameters.push_back(parameter);
    torch::optim::SGD optimizer(parameters, 0.1);
    OptimizerHook hook(pipeline, optimizer);
    for (int step = 0; step < 5; ++step) {
      pipeline.step(select(comparison.inputs, pipeline.input_micro_batches()),
                    select(comparison.labels, pipeline.loss_micro_batches()), comparison.criterion);
      hook.step();
      optimizer.zero_grad();
    }
  });
  for (int rank = 0; rank < 4; ++rank) {
    const auto mine = by_rank[rank][0]->parameters();
    const auto mirrored = by_rank[3 - rank][1]->parameters();
    const auto reference = oracle[rank]->parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(at::equal(mine[i], mirrored[i])) << rank;
      expect_close(mine[i], reference[i], 1e-10, "parameter after 5 steps");
    }
  }
}

// What crosses is read by its logical values, and so are gradients that come back expanded.
TEST(FieldReport22, TransposedOutputsArriveAsTheyAre) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    comparison.over_gloo = true;
    comparison.inputs = random_micro_batches(4, {2, 3, 8}, 7);
    comparison.labels = random_micro_batches(4, {2, 1, 1}, 8);
    comparison.make = [](int stage, int stages) {
      const at::Tensor w = weight({8, 8}, stage);
      const bool last = stage == stages - 1;
      return function_stage({{"w", w}}, [=](const TensorList& inputs) {
        const at::Tensor x = stage == 0 ? inputs.at(0) : inputs.at(0).transpose(1, 2);
        const at::Tensor h = at::linear(x, w);
        return TensorList{last ? h.sum({1, 2}, true) : h.transpose(1, 2)};  // sum: its gradient is an expand().
      });
    };
    expect_like_whole_model(comparison);
  }
}

TEST(FieldReport25, ViewsOfTheLastStageAreReturned) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    comparison.labels = random_micro_batches(4, {4, 4}, 9);
    comparison.make = [](int stage, int stages) {
      const at::Tensor w = weight({8, 8}, stage);
      return function_stage({{"w", w}}, [=](const TensorList& inputs) {
        const at::Tensor h = at::linear(inputs.at(0), w);
        if (stage < stages - 1) return TensorList{h};
        return TensorList{h.view({4, -1}).narrow(1, 0, 4), h.view({2, 16})};
      });
    };
    expect_like_whole_model(comparison);
  }
}

// Freeing what was sent leaves the base of a view alone.
TEST(FieldReport26, ViewsOfMiddleStagesAreSentAndFreed) {
  Comparison comparison = mlp_comparison("dualpipe", 4, 8);
  comparison.make = [](int stage, int) {
    const at::Tensor w = weight({16, 8}, stage);
    return function_stage({{"w", w}}, [=](const TensorList& inputs) {
      at::Tensor h = at::linear(inputs.at(0), w);
      if (stage > 0) h = h + inputs.at(1).sum(1, true);    // The view that was sent.
      const at::Tensor other = at::gelu(h).mean(1, true);  // Saves the base that the output is a view of.
      return TensorList{h.narrow(1, 4, 8) * 1.0 + other, h.narrow(1, 0, 3)};
    });
  };
  expect_like_whole_model(comparison);
}

// The middle stage ignores an input that needs a gradient.
TEST(FieldReport28, AMissingGradientCountsAsZero) {
  for (const std::string schedule : {"1f1b", "zb1p"}) {
    Comparison comparison = mlp_comparison(schedule, 3, 6);
    comparison.make = [](int stage, int) {
      const at::Tensor w = weight({8, 8}, stage);
      return function_stage({{"w", w}}, [=](const TensorList& inputs) {
        const at::Tensor h = at::linear(inputs.at(0), w);
        if (stage == 0) return TensorList{h, h * 2};
        return TensorList{h};
      });
    };
    expect_like_whole_model(comparison);
  }
}

// Whether the second input gets a gradient depends on the micro-batch.
TEST(FieldReport29, AGradientThatComesAndGoes) {
  for (const std::string schedule : {"1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    for (int k = 0; k < 4; ++k) comparison.inputs[k].push_back(at::full({1}, k % 2, at::kLong));
    comparison.make = [](int stage, int stages) {
      const at::Tensor w = weight({8, 8}, stage);
      return function_stage({{"w", w}}, [=](const TensorList& inputs) {
        at::Tensor h = at::linear(inputs.at(0), w);
        const at::Tensor& odd = inputs.back();
        if (stage > 0 && odd.item<std::int64_t>() == 1) h = h + inputs.at(1);
        if (stage == stages - 1) return TensorList{h};
        return TensorList{h, h * 3, odd};
      });
    };
    expect_like_whole_model(comparison);
  }
}

TEST(FieldReport31, IntegersAndMasksTravelWithTheActivations) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 4, 8);
    comparison.over_gloo = true;
    for (int k = 0; k < 8; ++k) comparison.inputs[k] = {(at::arange(12, at::kLong) * (k + 1) % 10).view({4, 3})};
    comparison.labels = random_micro_batches(8, {4, 3, 8}, 10);
    comparison.make = [](int stage, int stages) -> std::shared_ptr<StageModule> {
      if (stage == 0) {
        const at::Tensor table = weight({10, 8}, 77);
        return function_stage({{"table", table}}, [=](const TensorList& inputs) {
          return TensorList{at::embedding(table, inputs.at(0)), inputs.at(0) > 4, inputs.at(0) + 1, at::Tensor()};
        });
      }
      const at::Tensor w = weight({8, 8}, stage);
      return function_stage({{"w", w}}, [=](const TensorList& inputs) {
        const at::Tensor h =
            at::linear(inputs.at(0), w).masked_fill(inputs.at(1).unsqueeze(-1), 0.5) * inputs.at(2).unsqueeze(-1);
        if (inputs.at(3).defined()) throw std::runtime_error("an undefined tensor arrived defined");
        if (stage == stages - 1) return TensorList{h};
        return TensorList{h, inputs.at(1), inputs.at(2), inputs.at(3)};
      });
    };
    expect_like_whole_model(comparison);
  }
}

// No layer defers anything by itself, and one stage has no parameters at all.
TEST(FieldReport32, LayersThatDeferNothing) {
  for (const std::string schedule : {"zb1p", "dualpipe"}) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    comparison.make = [](int stage, int) {
      if (stage == 1)
        return function_stage({}, [](const TensorList& inputs) { return TensorList{inputs.at(0).relu()}; });
      const at::Tensor w = weight({8, 8}, stage);
      const at::Tensor scale = weight({8}, stage + 9);
      return function_stage({{"w", w}, {"scale", scale}}, [=](const TensorList& inputs) {
        return TensorList{at::relu(at::layer_norm(at::linear(inputs.at(0), w), {8}, scale))};
      });
    };
    expect_like_whole_model(comparison);
  }
}

// The loss of micro-batch i counts i+1 times.
TEST(FieldReport53, EachMicroBatchHasItsOwnLoss) {
  for (const std::string schedule : {"dualpipe", "dualpipev"}) {
    Comparison comparison = mlp_comparison(schedule, 2, 8);
    for (int k = 0; k < 8; ++k) comparison.labels[k].push_back(at::full({}, k + 1, at::kDouble));
    comparison.criterion = Criterion([](const TensorList& outputs, const TensorList& labels) {
      return (outputs.at(0) - labels.at(0)).square().mean() * labels.at(1);
    });
    expect_like_whole_model(comparison);
  }
}

// Inputs come out of an encoder that the pipeline does not know.
TEST(FieldReport58, InputsWithAGraphReceiveTheirGradient) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = mlp_comparison(schedule, 2, 4);
    const at::Tensor reference = weight({8, 8}, 500);
    MicroBatches encoded;
    for (const TensorList& batch : comparison.inputs) encoded.push_back({at::linear(batch[0], reference)});
    run_whole_model(all_stages(comparison), encoded, comparison.labels, comparison.criterion);
    at::Tensor sum = at::zeros({8, 8}, at::kDouble);
    run_ranks(2, [&](Rank& rank) {
      Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
      const at::Tensor encoder = weight({8, 8}, 500);
      TensorList inputs;
      const MicroBatches mine = select(comparison.inputs, pipeline.input_micro_batches());
      if (!mine.empty()) {
        TensorList rows;
        for (const TensorList& batch : mine) rows.push_back(batch[0]);
        inputs = {at::linear(at::cat(rows), encoder)};  // One graph under all micro-batches.
      }
      TensorList labels;
      TensorList rows;
      for (const TensorList& batch : select(comparison.labels, pipeline.loss_micro_batches())) rows.push_back(batch[0]);
      if (!rows.empty()) labels = {at::cat(rows)};
      pipeline.step(inputs, labels, comparison.criterion);
      if (encoder.grad().defined()) {
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        sum += encoder.grad();
      }
    });
    expect_close(sum, reference.grad(), 1e-10, schedule);
  }
}

// Shapes and data go over the same edges in one order, whatever the lengths.
TEST(FieldReport11, LengthsMayVaryBetweenMicroBatchesOnFourRanks) {
  const std::vector<std::int64_t> lengths{7, 12, 3, 9, 5, 11, 2, 8};
  for (const std::string schedule : {"1f1b", "dualpipe"}) {
    Comparison comparison = mlp_comparison(schedule, 4, 8);
    comparison.options.variable_seq_lengths = true;
    comparison.over_gloo = true;
    for (std::size_t k = 0; k < lengths.size(); ++k) {
      comparison.inputs[k] = random_micro_batches(1, {lengths[k], 8}, 100 + k).front();
      comparison.labels[k] = random_micro_batches(1, {lengths[k], 8}, 200 + k).front();
    }
    expect_like_whole_model(comparison);
  }
}

}  // namespace
}  // namespace dualpipe
