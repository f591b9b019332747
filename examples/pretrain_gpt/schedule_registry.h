// examples/pretrain_gpt/schedule_registry.h
//
// From the name in `pipeline_schedule` to a forward-backward function.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/forward_backward.h"

namespace pretrain_gpt {

struct ScheduleChoice {
  std::string rows;    // In the text form, a line per pipeline rank.
  std::string reason;  // For the log: what was chosen, and why.
};

struct ScheduleEntry {
  std::string name;
  std::string summary;  // One line for `pretrain_gpt schedules`.

  // Throws where the configuration does not suit the schedule. Called on every rank before anything is sent.
  std::function<void(const Config& config, int pipeline_size)> validate;

  std::function<std::unique_ptr<ForwardBackward>(const TrainContext& context)> make;

  // Whether pipeline ranks r and P-1-r hold the same stages, which the groups have to know before `make`. Empty: no.
  std::function<bool(const Config& config, int pipeline_size)> mirrors_stages = {};

  // Of an entry that leaves open what runs, and has no `make`: chooses rows (on one rank; may take its time), and makes
  // of them the entry that all ranks go on with. `validate` has seen the configuration by then. Empty elsewhere.
  std::function<ScheduleChoice(const Config& config, int pipeline_size)> choose = {};
  std::function<ScheduleEntry(const std::string& rows)> chosen = {};

  // Of an entry that was made from something else than its name (a file): what it was made from, in short. All ranks
  // have to agree about it.
  std::string fingerprint = {};

  bool mirrors(const Config& resolved) const {
    return mirrors_stages && mirrors_stages(resolved, static_cast<int>(resolved.pipeline_size()));
  }
};

class ScheduleRegistry {
 public:
  // Makes an entry for names that are not in the registry (a file, say), or nothing.
  using Resolver = std::function<std::optional<ScheduleEntry>(const std::string& name)>;

  // Throws UserError if the name is taken.
  void add(ScheduleEntry entry);

  // Asked in the order of addition, after the names.
  void add_resolver(Resolver resolver);

  // Throws UserError, from `origin`, with all names and the nearest one if there is none.
  ScheduleEntry find(const std::string& name, const std::string& origin = "pipeline_schedule") const;

  const std::vector<ScheduleEntry>& entries() const { return entries_; }

 private:
  std::vector<std::string> names() const;

  std::vector<ScheduleEntry> entries_;
  std::vector<Resolver> resolvers_;
};

}  // namespace pretrain_gpt
