// examples/pretrain_gpt/measured_layers.h
//
// What layers were measured to take: the `layers` of a cost file, which `dualpipe profile` writes.
//
//   {"format": "dualpipe-cost", "version": 1, "unit": "ms", ...,
//    "layers": [{"name": "embedding", "forward": 0.2, "backward_input": 0, "backward_weight": 0.1}, {"name": "0", ...},
//               ..., {"name": "head", ...}]}
#pragma once

#include <filesystem>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

// Milliseconds of forward and backward. "embedding" and "head" may be missing and take nothing then; the others are the
// model's layers in order, num_layers of them. Throws UserError with the file and the key where it is something else.
LayerTimes read_layer_times(const std::filesystem::path& file, std::int64_t num_layers);

}  // namespace pretrain_gpt
