// examples/custom_overlap/hook.h
//
// The model's own overlapped_forward_backward, built step by step. The backward of module1 is one call of the engine,
// as it would be alone; whenever it has posted an exchange and would wait, the forward of module0 goes on by one step:
//
//   backward                            forward
//   combine back posted                 attention, dispatch posted
//   combine back awaited, MLP
//   dispatch back posted                dispatch awaited, MLP, combine posted
//   dispatch back awaited, attention
//                                       combine awaited, sum
#pragma once

#include "plugin/runtime/stage_module.h"

namespace custom_overlap {

// A dualpipe::OverlapHook of two Stages.
dualpipe::OverlapResult overlapped(dualpipe::StageModule& module0, const dualpipe::TensorList& inputs0,
                                   const dualpipe::Criterion* criterion0, const dualpipe::TensorList& labels0,
                                   dualpipe::StageModule& module1, const at::Tensor& loss1,
                                   const dualpipe::TensorList& outputs1, const dualpipe::TensorList& output_grads1);

}  // namespace custom_overlap
