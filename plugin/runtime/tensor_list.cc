#include "plugin/runtime/tensor_list.h"

#include <ATen/Functions.h>

#include <string>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

std::string given(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? "a scalar" : std::to_string(tensor.size(0)) + (tensor.size(0) == 1 ? " row" : " rows");
}

void check_rows(const at::Tensor& tensor, std::size_t index, int count) {
  if (tensor.dim() == 0 || tensor.size(0) < count) {
    throw ScheduleError("split_rows", "tensor " + std::to_string(index) +
                                          " must have at least one row per micro-batch = " + std::to_string(count) +
                                          ", got " + given(tensor));
  }
}

}  // namespace

MicroBatches split_rows(const TensorList& batch, int count) {
  if (count < 1) throw ScheduleError("split_rows", "count must be at least 1, got " + std::to_string(count));
  MicroBatches parts(count, TensorList(batch.size()));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].defined()) continue;
    check_rows(batch[i], i, count);
    const std::vector<at::Tensor> rows = at::tensor_split(batch[i], count);
    for (int part = 0; part < count; ++part) parts[part][i] = rows[part];
  }
  return parts;
}

}  // namespace dualpipe
