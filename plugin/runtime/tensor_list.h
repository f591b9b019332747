// plugin/runtime/tensor_list.h
//
// What crosses a stage boundary: any number of tensors, of any dtype, some of them undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dualpipe {

using TensorList = std::vector<at::Tensor>;
using MicroBatches = std::vector<TensorList>;  // [micro-batch][tensor]

// Splits every tensor along dimension 0 into `count` parts as torch.tensor_split does (10 rows in 4: 3, 3, 2, 2);
// undefined tensors stay undefined. Throws ScheduleError where a tensor has fewer rows than `count`, or none.
MicroBatches split_rows(const TensorList& batch, int count);

}  // namespace dualpipe
