// plugin/schedule/registry.h
//
// From a schedule's name to its generator. A Registry is a value: take builtin_registry(), add your own, hand it to
// whoever needs it. A name that ends in ".csv" is read as a file in the text form.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plugin/schedule/schedule.h"

namespace dualpipe {

// Throws ScheduleError where the spec breaks the schedule's own rule (odd P, too few micro-batches, ...).
using Generator = std::function<Schedule(const ScheduleSpec&)>;

class Registry {
 public:
  // Replaces nothing: a name that is taken throws ScheduleError.
  void add(std::string name, Generator generator);
  std::vector<std::string> names() const;
  // Throws ScheduleError for an unknown name, with the nearest valid one. For "*.csv", P and M of the spec must agree
  // with the file's.
  Schedule make(const std::string& name, const ScheduleSpec& spec) const;

 private:
  std::map<std::string, Generator> generators_;
};

// 1f1b, interleaved_1f1b, zb1p, dualpipe, dualpipev.
Registry builtin_registry();

}  // namespace dualpipe
