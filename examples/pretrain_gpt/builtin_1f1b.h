// examples/pretrain_gpt/builtin_1f1b.h
//
// The trainer's own pipeline schedule, `builtin_1f1b`: one stage per rank, as many forwards ahead as there are ranks
// behind, then one forward and one backward in turn.
//
// Messages are asynchronous: two receives per direction are posted ahead of the compute that needs them, sends are
// waited for only once the other side is known to have them, and an output is freed when its send is done (only its
// place in the autograd graph is kept). With one rank it is plain autograd over the whole model.
#pragma once

#include "examples/pretrain_gpt/schedule_registry.h"

namespace pretrain_gpt {

ScheduleEntry builtin_1f1b();

}  // namespace pretrain_gpt
