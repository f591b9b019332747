#include "tests/support/whole_model.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace dualpipe {
namespace {

namespace functional = torch::nn::functional;

// Two Linears in float64, the oracle's oracle being the same two on the whole batch at once.
class WholeModel : public ::testing::Test {
 protected:
  WholeModel() {
    at::manual_seed(3);
    for (auto& layer : layers_) {
      layer->to(at::kDouble);
      stages_.push_back(make_stage(layer.ptr()));
    }
    input_ = at::randn({10, 4}, at::kDouble);
    target_ = at::randn({10, 4}, at::kDouble);
  }

  at::Tensor on_whole_batch() { return layers_[1]->forward(layers_[0]->forward(input_)); }

  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> gradients;
    for (auto& layer : layers_) {
      for (const at::Tensor& parameter : layer->parameters()) {
        gradients.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
      }
    }
    return gradients;
  }

  void expect_gradients(const at::Tensor& loss, const std::vector<at::Tensor>& actual) {
    loss.backward();
    const std::vector<at::Tensor> expected = take_gradients();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-13, 1e-15)) << "parameter " << i;
    }
  }

  std::vector<torch::nn::Linear> layers_ = {torch::nn::Linear(4, 6), torch::nn::Linear(6, 4)};
  std::vector<std::shared_ptr<StageModule>> stages_;
  at::Tensor input_;
  at::Tensor target_;
};

at::Tensor mean_loss(const TensorList& outputs, const TensorList& labels) {
  return functional::mse_loss(outputs[0], labels[0]);
}

TEST_F(WholeModel, UnevenMicroBatchesWeighAsManyRowsAsTheyHave) {
  const MicroBatches inputs = split_rows({input_}, 4);
  const MicroBatches labels = split_rows({target_}, 4);
  const WholeModelResult result = run_whole_model(stages_, inputs, labels, Criterion(mean_loss));
  const std::vector<at::Tensor> gradients = take_gradients();

  const at::Tensor output = on_whole_batch();
  const at::Tensor expected = functional::mse_loss(output, target_);
  EXPECT_NEAR(result.global_loss, expected.item<double>(), 1e-14);
  ASSERT_EQ(result.losses.size(), 4u);
  ASSERT_EQ(result.outputs.size(), 4u);
  at::Tensor outputs = result.outputs[0][0];
  for (std::size_t k = 0; k < 4; ++k) {
    EXPECT_TRUE(at::equal(result.losses[k], mean_loss(result.outputs[k], labels[k])));
    EXPECT_FALSE(result.losses[k].requires_grad() || result.outputs[k][0].requires_grad());
    outputs = k == 0 ? outputs : at::cat({outputs, result.outputs[k][0]});
  }
  EXPECT_TRUE(at::allclose(outputs, output, 1e-13));
  expect_gradients(expected, gradients);
}

TEST_F(WholeModel, SumsAreDividedByTheWeightOfTheWholeBatch) {
  const auto sum = [](const TensorList& outputs, const TensorList& labels) {
    return ((outputs[0] - labels[0]).square().sum(1) * labels[1]).sum();
  };
  const at::Tensor valid = at::tensor({1, 0, 1, 1, 1, 0, 0, 1, 1, 1}, at::kDouble);
  const Criterion criterion =
      Criterion::sum(sum, [](const TensorList& labels) { return labels[1].sum().item<double>(); });
  const MicroBatches inputs = split_rows({input_}, 4);
  const MicroBatches labels = split_rows({target_, valid}, 4);
  const WholeModelResult result = run_whole_model(stages_, inputs, labels, criterion);
  const std::vector<at::Tensor> gradients = take_gradients();

  const at::Tensor expected = sum({on_whole_batch()}, {target_, valid}) / 7;
  EXPECT_NEAR(result.global_loss, expected.item<double>(), 1e-14);
  EXPECT_NEAR(result.losses[0].item<double>(), sum(result.outputs[0], labels[0]).item<double>() / 2, 1e-14);
  expect_gradients(expected, gradients);
}

TEST_F(WholeModel, WithoutGradModeThereIsNoBackward) {
  at::NoGradGuard no_grad;
  const WholeModelResult result = run_whole_model(stages_, {{input_}}, {{target_}}, Criterion(mean_loss));
  EXPECT_NEAR(result.global_loss, functional::mse_loss(on_whole_batch(), target_).item<double>(), 1e-14);
  for (const at::Tensor& gradient : take_gradients()) {
    EXPECT_FALSE(gradient.defined());
  }
}

}  // namespace
}  // namespace dualpipe
