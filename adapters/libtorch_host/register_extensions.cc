// The trainer's seam for schedules from outside (examples/pretrain_gpt/extensions.h), filled with the plugin's.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "adapters/libtorch_host/auto_schedule.h"
#include "adapters/libtorch_host/plugin_schedule.h"
#include "examples/pretrain_gpt/extensions.h"
#include "examples/pretrain_gpt/failures/exit_code.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"

namespace pretrain_gpt {
namespace {

using dualpipe::libtorch_host::auto_request;
using dualpipe::libtorch_host::choose;
using dualpipe::libtorch_host::kAuto;
using dualpipe::libtorch_host::PluginSchedule;
using dualpipe::libtorch_host::registry_with;

// The plugin's word for a mistake in the configuration, in the trainer's (exit_code.h).
template <typename Body>
auto in_trainers_words(const Body& body) {
  try {
    return body();
  } catch (const dualpipe::ScheduleError& mistake) {
    throw RunError(ExitCode::kConfiguration, mistake.what());
  }
}

ScheduleEntry entry_of(const std::string& name, const std::string& summary,
                       const dualpipe::Registry& registry = dualpipe::builtin_registry()) {
  ScheduleEntry entry;
  entry.name = name;
  entry.summary = summary;
  entry.validate = [name, registry](const Config& config, int world_size) {
    in_trainers_words([&] { dualpipe::libtorch_host::validate(name, config, world_size, registry); });
  };
  entry.make = [name, registry](const TrainContext& context) {
    return in_trainers_words([&] { return std::make_unique<PluginSchedule>(name, context, registry); });
  };
  entry.mirrors_stages = [name, registry](const Config& config, int world_size) {
    return in_trainers_words(
        [&] { return dualpipe::libtorch_host::mirrors_stages(name, config, world_size, registry); });
  };
  return entry;
}

ScheduleEntry auto_entry() {
  ScheduleEntry entry;
  entry.name = kAuto;
  entry.summary = "the fastest order that a search finds under cost_file and memory_limit_gb";
  entry.validate = [](const Config& config, int world_size) {
    in_trainers_words([&] { auto_request(config, world_size); });
  };
  entry.choose = [](const Config& config, int world_size) {
    return in_trainers_words([&] { return choose(config, world_size); });
  };
  entry.chosen = [](const std::string& rows) {
    return in_trainers_words([&] { return entry_of(kAuto, "as chosen", registry_with(rows)); });
  };
  return entry;
}

std::string summary_of(const std::string& name) {
  if (name == "1f1b") return "one stage per rank, one forward one backward; the plugin's engine";
  if (name == "interleaved_1f1b") return "Megatron's interleaved 1F1B; micro-batches a multiple of the ranks";
  if (name == "zb1p") return "zero bubble (ZB-H1): one stage per rank, weight gradients fill the bubble";
  if (name == "dualpipe") return "DualPipe: from both ends; even ranks, even micro-batches, at least 2 x ranks";
  if (name == "dualpipev") return "DualPipeV: two stages per rank in a V; micro-batches at least 2 x ranks";
  return "registered by the plugin";
}

// FNV-1a of a file, the same on every machine; of one that cannot be read, which validation refuses, of nothing.
std::string fingerprint_of(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t hash = 14695981039346656037U;
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    hash = (hash ^ static_cast<unsigned char>(*at)) * 1099511628211U;
  }
  return std::to_string(hash);
}

}  // namespace

void register_extensions(ScheduleRegistry& registry) {
  for (const std::string& name : dualpipe::builtin_registry().names()) registry.add(entry_of(name, summary_of(name)));
  registry.add(auto_entry());
  registry.add_resolver([](const std::string& name) -> std::optional<ScheduleEntry> {
    if (!name.ends_with(".csv")) return std::nullopt;
    ScheduleEntry entry = entry_of(name, "the schedule in " + name);
    entry.fingerprint = fingerprint_of(name);
    return entry;
  });
}

}  // namespace pretrain_gpt
