// plugin/schedule/generators.h
//
// The built-in schedules, each a function from a spec to a Schedule. Rules are checked here, once.
#pragma once

#include "plugin/schedule/schedule.h"

namespace dualpipe {

// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (2021), section 2.2. Any M >= 1.
Schedule generate_1f1b(const ScheduleSpec& spec);
// The same, interleaved, as Megatron orders it; M a multiple of P; C = virtual_pipeline_model_parallel_size >= 2.
Schedule generate_interleaved_1f1b(const ScheduleSpec& spec);
// Qi et al., "Zero Bubble Pipeline Parallelism" (2023), ZB-H1: PyTorch's InterleavedZeroBubble with one stage per rank.
Schedule generate_zb1p(const ScheduleSpec& spec);
// DeepSeek-V3 Technical Report (2024), section 3.2.1. P even, M even, M >= 2P.
Schedule generate_dualpipe(const ScheduleSpec& spec);
// The same, folded in half ("cut-in-half"): R ranks, 2R stages, M >= 2R, odd M allowed.
Schedule generate_dualpipev(const ScheduleSpec& spec);

}  // namespace dualpipe
