#include "plugin/runtime/criterion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using ::testing::ThrowsMessage;

at::Tensor mean_loss(const TensorList& outputs, const TensorList& labels) {
  return at::mse_loss(outputs[0], labels[0]);
}

double weight_of(const Criterion& criterion, const TensorList& labels) { return criterion.weight_of(labels); }

TEST(Criterion, WeighsByTheRowsOfTheFirstDefinedLabel) {
  const Criterion criterion = mean_loss;
  EXPECT_EQ(criterion.weight_of({at::zeros({3, 2})}), 3.0);
  EXPECT_EQ(criterion.weight_of({at::Tensor(), at::zeros({5}, at::kLong), at::zeros({7})}), 5.0);
  EXPECT_EQ(criterion.weight_of({at::zeros({0, 2})}), 0.0);
  EXPECT_EQ(criterion.weight_of({at::zeros({})}), 1.0);
  EXPECT_EQ(criterion.weight_of({at::Tensor()}), 1.0);
  EXPECT_EQ(criterion.weight_of({}), 1.0);
  EXPECT_FALSE(criterion.returns_sum);
}

TEST(Criterion, IsMadeFromFunctionsAndLambdasAlike) {
  const TensorList labels = {at::zeros({3, 2})};
  EXPECT_EQ(weight_of(mean_loss, labels), 3.0);
  EXPECT_EQ(weight_of([](const TensorList& outputs, const TensorList&) { return outputs[0].mean(); }, labels), 3.0);
  EXPECT_EQ(weight_of(Criterion::Loss(mean_loss), labels), 3.0);
  const Criterion criterion = mean_loss;
  EXPECT_EQ(criterion.loss({at::ones({3, 2})}, labels).item<float>(), 1.0f);
}

TEST(Criterion, OfASumWeighsAsItIsTold) {
  const auto criterion = Criterion::sum(
      [](const TensorList& outputs, const TensorList& labels) { return (outputs[0] - labels[0]).square().sum(); },
      [](const TensorList& labels) { return labels[0].ne(0).sum().item<double>(); });
  const TensorList labels = {at::tensor({2.0, 0.0, 1.0})};
  EXPECT_TRUE(criterion.returns_sum);
  EXPECT_EQ(criterion.weight_of(labels), 2.0);
  EXPECT_EQ(criterion.loss({at::zeros({3}, at::kDouble)}, labels).item<double>(), 5.0);
}

TEST(Criterion, RefusesWhatCannotBeALoss) {
  EXPECT_THAT(
      [] { Criterion criterion{Criterion::Loss()}; },
      ThrowsMessage<ScheduleError>("[criterion] loss must be a function of (outputs, labels), got an empty one"));
  EXPECT_THAT(
      [] { Criterion::sum(mean_loss, {}); },
      ThrowsMessage<ScheduleError>("[criterion] weight of a sum must be a function of the labels, got an empty one"));
}

TEST(Criterion, RefusesWeightsThatCannotBeSummed) {
  const auto with_weight = [](double weight) {
    return Criterion::sum(mean_loss, [weight](const TensorList&) { return weight; });
  };
  EXPECT_THAT(
      [&] { with_weight(-1).weight_of({}); },
      ThrowsMessage<ScheduleError>("[criterion] weight of a micro-batch must be finite and at least 0, got -1.000000"));
  EXPECT_THROW(with_weight(std::numeric_limits<double>::quiet_NaN()).weight_of({}), ScheduleError);
  EXPECT_THROW(with_weight(std::numeric_limits<double>::infinity()).weight_of({}), ScheduleError);
  EXPECT_EQ(with_weight(0).weight_of({}), 0.0);
}

}  // namespace
}  // namespace dualpipe
