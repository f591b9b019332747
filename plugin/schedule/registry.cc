#include "plugin/schedule/registry.h"

#include <string_view>
#include <utility>

#include "plugin/schedule/error.h"
#include "plugin/schedule/generators.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

constexpr std::string_view kOrigin = "pipeline_schedule";

bool names_file(std::string_view name) { return name.ends_with(".csv"); }

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

[[noreturn]] void refuse_unknown(const std::string& name, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(name, names);
  throw ScheduleError(kOrigin, "must be one of " + join(names) + " or a .csv file, got \"" + name + "\"" +
                                   (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

void require_same(const std::string& origin, std::string_view what, int made, int wanted) {
  if (made != wanted) {
    throw ScheduleError(origin, std::string(what) + " must be " + std::to_string(made) +
                                    ", which the schedule is made for, got " + std::to_string(wanted));
  }
}

}  // namespace

void Registry::add(std::string name, Generator generator) {
  if (name.empty() || names_file(name)) {
    throw ScheduleError(kOrigin, "a name must not be empty or end in .csv, got \"" + name + "\"");
  }
  if (!generator) {
    throw ScheduleError(kOrigin, "the generator of \"" + name + "\" must be callable, got an empty function");
  }
  const auto [place, added] = generators_.emplace(std::move(name), std::move(generator));
  if (!added) {
    throw ScheduleError(kOrigin, "a new name must not be taken, got \"" + place->first + "\"");
  }
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, generator] : generators_) {
    names.push_back(name);
  }
  return names;
}

Schedule Registry::make(const std::string& name, const ScheduleSpec& spec) const {
  const auto generator = generators_.find(name);
  if (generator == generators_.end() && !names_file(name)) {
    refuse_unknown(name, names());
  }
  Schedule schedule = names_file(name) ? read_schedule(name) : generator->second(spec);
  require_same(name, "pipeline_model_parallel_size", schedule.placement.ranks(), spec.pipeline_model_parallel_size);
  require_same(name, "num_microbatches", schedule.num_microbatches, spec.num_microbatches);
  return schedule;
}

Registry builtin_registry() {
  Registry registry;
  registry.add("1f1b", generate_1f1b);
  registry.add("interleaved_1f1b", generate_interleaved_1f1b);
  registry.add("zb1p", generate_zb1p);
  registry.add("dualpipe", generate_dualpipe);
  registry.add("dualpipev", generate_dualpipev);
  return registry;
}

}  // namespace dualpipe
