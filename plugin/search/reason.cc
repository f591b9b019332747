#include "plugin/search/reason.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "plugin/schedule/error.h"
#include "plugin/search/check_request.h"

namespace dualpipe::search {
namespace {

// Six digits, without trailing zeros.
std::string number(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::general, 6).ptr;
  return std::string(digits, end);
}

// With separators: 1,250,000.
std::string count(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (int place = static_cast<int>(digits.size()) - 3; place > 0; place -= 3) digits.insert(place, ",");
  return digits;
}

// What the limit counts in.
std::string unit_of(const AutoRequest& request) {
  const int parts = activation_stages(request);
  return parts == 1 ? "of the whole model" : "of 1/" + std::to_string(parts) + " of the model";
}

// `activations` in stages of a cut into `stages`.
std::string memory(int activations, int stages, const std::optional<double>& gb, const AutoRequest& request) {
  return "at most " + number(static_cast<double>(activations) * activation_stages(request) / stages) +
         " live activations" + (gb ? " and " + number(*gb) + " GB" : "") + " per rank";
}

std::string percent(double value) { return number(std::round(1000 * value) / 10) + " %"; }

std::string against_named(const AutoChoice& choice, const AutoRequest& request) {
  if (!choice.best_named) return "no named schedule is valid for these sizes and fits; ";
  const NamedResult& named = *choice.best_named;
  const std::string its = "the best named schedule, " + named.schedule + ", takes " + number(named.makespan) +
                          " with " + memory(named.peak_activations, named.stages, named.peak_memory_gb, request);
  if (choice.makespan >= named.makespan) return its + ", and nothing faster was found; ";
  return its + "; this one takes " + percent(1 - choice.makespan / named.makespan) + " less; ";
}

std::string least_of(const Candidate& candidate, const AutoRequest& request) {
  std::string least;
  if (request.max_activations) {
    const int stages = candidate.lanes.placement.stages();
    const int unit = activation_stages(request);
    least = "max_activations = " + std::to_string((candidate.least_activations * unit + stages - 1) / stages);
  }
  if (request.memory_limit_gb) {
    least += (least.empty() ? "" : " and ") + std::string("memory_limit_gb = ") +
             number(std::ceil(candidate.least_bytes / kBytesPerGb * 1000) / 1000);
  }
  return least + " for " + placement_name(candidate.kind, candidate.chunks);
}

}  // namespace

std::string reason_for(const AutoChoice& choice, const AutoRequest& request) {
  const int stages = choice.schedule.placement.stages();
  const int chunks = stages / choice.schedule.placement.ranks();
  std::string text = "placement " + placement_name(choice.placement, chunks) + ", makespan " + number(choice.makespan) +
                     ", " + memory(choice.peak_activations, stages, choice.peak_memory_gb, request) + ", each " +
                     unit_of(request) + ": ";
  text += against_named(choice, request);
  text += count(choice.evaluations) + " orders were looked at, and none can be faster than " + number(choice.bound);
  return text;
}

void refuse_limits(const std::vector<Candidate>& candidates, const AutoRequest& request) {
  std::string given;
  if (request.max_activations) given = "max_activations = " + std::to_string(*request.max_activations);
  if (request.memory_limit_gb) {
    given += (given.empty() ? "" : " and ") + std::string("memory_limit_gb = ") + number(*request.memory_limit_gb);
  }
  std::string least;
  for (const Candidate& candidate : candidates) least += (least.empty() ? "" : ", ") + least_of(candidate, request);
  throw ScheduleError("auto", "no order fits " + given + " on " + std::to_string(request.pipeline_model_parallel_size) +
                                  " ranks; the least that would: " + least);
}

}  // namespace dualpipe::search
