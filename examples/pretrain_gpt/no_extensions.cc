#include "examples/pretrain_gpt/extensions.h"

namespace pretrain_gpt {

void register_extensions(ScheduleRegistry&) {}

}  // namespace pretrain_gpt
