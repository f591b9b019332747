#include "plugin/runtime/criterion.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

double rows_of(const TensorList& labels) {
  const auto label = std::find_if(labels.begin(), labels.end(), [](const at::Tensor& t) { return t.defined(); });
  return label == labels.end() || label->dim() == 0 ? 1.0 : static_cast<double>(label->size(0));
}

}  // namespace

Criterion::Criterion(Loss loss) : loss(std::move(loss)) {
  if (!this->loss) throw ScheduleError("criterion", "loss must be a function of (outputs, labels), got an empty one");
}

Criterion Criterion::sum(Loss loss, Weight weight) {
  Criterion criterion(std::move(loss));
  if (!weight) throw ScheduleError("criterion", "weight of a sum must be a function of the labels, got an empty one");
  criterion.weight = std::move(weight);
  criterion.returns_sum = true;
  return criterion;
}

double Criterion::weight_of(const TensorList& labels) const {
  const double result = weight ? weight(labels) : rows_of(labels);
  if (!std::isfinite(result) || result < 0) {
    throw ScheduleError("criterion",
                        "weight of a micro-batch must be finite and at least 0, got " + std::to_string(result));
  }
  return result;
}

}  // namespace dualpipe
