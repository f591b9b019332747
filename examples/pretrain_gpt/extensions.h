// examples/pretrain_gpt/extensions.h
//
// The seam for schedules from outside. The program calls register_extensions() once, before it reads its configuration;
// the build links one definition of it: no_extensions.cc, or that of an adapter.
#pragma once

#include "examples/pretrain_gpt/schedule_registry.h"

namespace pretrain_gpt {

void register_extensions(ScheduleRegistry& registry);

}  // namespace pretrain_gpt
