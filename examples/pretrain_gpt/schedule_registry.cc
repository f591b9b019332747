#include "examples/pretrain_gpt/schedule_registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {

void ScheduleRegistry::add(ScheduleEntry entry) {
  for (const ScheduleEntry& other : entries_) {
    if (other.name == entry.name) {
      throw UserError("schedule registry",
                      fmt::format("a name must be added once, got '{0}' again; for example my_{0}", entry.name));
    }
  }
  entries_.push_back(std::move(entry));
}

void ScheduleRegistry::add_resolver(Resolver resolver) { resolvers_.push_back(std::move(resolver)); }

ScheduleEntry ScheduleRegistry::find(const std::string& name, const std::string& origin) const {
  for (const ScheduleEntry& entry : entries_) {
    if (entry.name == name) {
      return entry;
    }
  }
  for (const Resolver& resolve : resolvers_) {
    if (std::optional<ScheduleEntry> entry = resolve(name)) {
      return *std::move(entry);
    }
  }
  throw UserError(origin, fmt::format("must be one of {}, got '{}'{}", fmt::join(names(), ", "), name,
                                      did_you_mean(name, names())));
}

std::vector<std::string> ScheduleRegistry::names() const {
  std::vector<std::string> names;
  for (const ScheduleEntry& entry : entries_) {
    names.push_back(entry.name);
  }
  return names;
}

}  // namespace pretrain_gpt
