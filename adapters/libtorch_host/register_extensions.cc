// The trainer's seam for schedules from outside (examples/pretrain_gpt/extensions.h), filled with the plugin's.
#include "adapters/libtorch_host/plugin_schedule.h"
#include "examples/pretrain_gpt/extensions.h"
#include "plugin/schedule/registry.h"

namespace pretrain_gpt {
namespace {

using dualpipe::libtorch_host::PluginSchedule;

ScheduleEntry entry_of(const std::string& name, const std::string& summary) {
  return {name, summary,
          [name](const Config& config, int world_size) { dualpipe::libtorch_host::validate(name, config, world_size); },
          [name](const TrainContext& context) { return std::make_unique<PluginSchedule>(name, context); },
          [name](const Config& config, int world_size) {
            return dualpipe::libtorch_host::mirrors_stages(name, config, world_size);
          }};
}

std::string summary_of(const std::string& name) {
  if (name == "1f1b") return "one stage per rank, one forward one backward; the plugin's engine";
  if (name == "interleaved_1f1b") return "Megatron's interleaved 1F1B; micro-batches a multiple of the ranks";
  if (name == "zb1p") return "zero bubble (ZB-H1): one stage per rank, weight gradients fill the bubble";
  if (name == "dualpipe") return "DualPipe: from both ends; even ranks, even micro-batches, at least 2 x ranks";
  if (name == "dualpipev") return "DualPipeV: two stages per rank in a V; micro-batches at least 2 x ranks";
  return "registered by the plugin";
}

}  // namespace

void register_extensions(ScheduleRegistry& registry) {
  for (const std::string& name : dualpipe::builtin_registry().names()) registry.add(entry_of(name, summary_of(name)));
  registry.add_resolver([](const std::string& name) -> std::optional<ScheduleEntry> {
    if (!name.ends_with(".csv")) return std::nullopt;
    return entry_of(name, "the schedule in " + name);
  });
}

}  // namespace pretrain_gpt
