#include "plugin/compare/notes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dualpipe::compare {
namespace {

using Names = std::vector<std::string>;

bool finished(const ScheduleFigures& run) { return !run.failure; }

const ScheduleFigures* find(const Comparison& comparison, const std::string& schedule) {
  for (const ScheduleFigures& run : comparison.runs) {
    if (run.schedule == schedule && finished(run)) return &run;
  }
  return nullptr;
}

template <class Holds>
Names names_where(const Comparison& comparison, Holds holds) {
  Names names;
  for (const ScheduleFigures& run : comparison.runs) {
    if (finished(run) && holds(run)) names.push_back(run.schedule);
  }
  return names;
}

std::string list(const Names& names) { return fmt::format("{}", fmt::join(names, ", ")); }

const char* verb(const Names& names, const char* one, const char* many) { return names.size() == 1 ? one : many; }

constexpr std::array<std::string_view, 5> kWithOneCopy = {"builtin_1f1b", "1f1b", "interleaved_1f1b", "zb1p",
                                                          "dualpipev"};

// Where a host wrote no timelines, known of schedules of ours alone: a file, a search or a schedule of the host's may
// put a stage on two ranks.
std::optional<bool> holds_two_copies(const ScheduleFigures& run) {
  if (run.parameter_copies) return *run.parameter_copies > 1.5;
  if (run.schedule == "dualpipe") return true;
  return std::ranges::find(kWithOneCopy, run.schedule) != kWithOneCopy.end() ? std::optional(false) : std::nullopt;
}

void note_copies(const Comparison& comparison, Names& notes) {
  const auto names = [&](std::optional<bool> answer) {
    return names_where(comparison, [&](const ScheduleFigures& run) { return holds_two_copies(run) == answer; });
  };
  const Names twice = names(true);
  const Names once = names(false);
  const Names unknown = names(std::nullopt);
  if (twice.empty() && unknown.empty()) {
    if (!once.empty()) notes.push_back("Every row holds one copy of the parameters over its ranks.");
    return;
  }
  Names parts;
  if (!twice.empty())
    parts.push_back(fmt::format("{} {} twice the parameters: every stage lives on two ranks.", list(twice),
                                verb(twice, "holds", "hold")));
  if (!once.empty())
    parts.push_back(fmt::format("One copy{}: {}.", twice.empty() ? " of the parameters" : "", list(once)));
  if (!unknown.empty())
    parts.push_back(fmt::format(
        "{} for {}.", parts.empty() ? "How many copies of the parameters a row holds is not known" : "Not known",
        list(unknown)));
  notes.push_back(fmt::format("{}", fmt::join(parts, " ")));
}

// Of those that a speed-up is shown of, how few rounds they share with the baseline.
void note_intervals(const Comparison& comparison, Names& notes) {
  const Names without =
      names_where(comparison, [](const ScheduleFigures& run) { return run.speedup && !run.speedup->low; });
  if (!without.empty())
    notes.push_back(fmt::format("No interval of the speed-up of {}: that takes at least {} rounds (--rounds {}).",
                                list(without), kLeastRoundsOfInterval, kLeastRoundsOfInterval));
}

void note_chunks(const Comparison& comparison, Names& notes) {
  const ScheduleFigures* interleaved = find(comparison, "interleaved_1f1b");
  const ScheduleFigures* folded = find(comparison, "dualpipev");
  if (interleaved != nullptr && folded != nullptr && interleaved->chunks != folded->chunks)
    notes.push_back(
        "interleaved_1f1b and dualpipev differ in chunks per rank; virtual_pipeline_model_parallel_size: 2 makes them "
        "equal.");
}

void note_absent(const Comparison& comparison, Names& notes) {
  if (find(comparison, "dualpipe") == nullptr && find(comparison, "dualpipev") == nullptr) return;
  Names absent;
  if (find(comparison, "interleaved_1f1b") == nullptr)
    absent.push_back("interleaved_1f1b (1F1B with as many chunks per rank)");
  if (find(comparison, "dualpipev") == nullptr) absent.push_back("dualpipev (as many parameters per rank as 1F1B)");
  if (!absent.empty()) notes.push_back("For a fair picture this lacks " + list(absent) + ".");
}

void note_files(const Comparison& comparison, Names& notes) {
  const Names without = names_where(comparison, [](const ScheduleFigures& run) { return !run.num_stages; });
  if (!without.empty())
    notes.push_back(
        fmt::format("'-': {} wrote no timeline_rank<R>.jsonl into DUALPIPE_OUTPUT; docs/run_files.md says "
                    "what a host writes there.",
                    list(without)));
  const Names unrecorded =
      names_where(comparison, [](const ScheduleFigures& run) { return run.num_stages && !run.pipeline_ms; });
  if (!unrecorded.empty())
    notes.push_back(
        fmt::format("'-': {} recorded no step after the warm-up that all ranks of a pipeline have.", list(unrecorded)));
  const Names hidden =
      names_where(comparison, [](const ScheduleFigures& run) { return run.pipeline_ms && !run.exposed_ms; });
  if (!hidden.empty())
    notes.push_back(
        fmt::format("{} wrote no exposed_seconds: waiting for an exchange counts as busy there.", list(hidden)));
}

// Where the host's first iteration has no norm, the check of it is none.
void note_norms(const Comparison& comparison, Names& notes) {
  const Names without = names_where(
      comparison, [](const ScheduleFigures& run) { return !run.grad_norms.empty() && !run.grad_norms.front(); });
  if (without.empty()) return;
  const std::string& reference = *comparison.reference;
  const bool has_none = std::ranges::find(without, reference) != without.end();
  notes.push_back(fmt::format("'-': {} wrote no grad_norm into metrics.jsonl, so {}.", list(without),
                              has_none
                                  ? fmt::format("no gradient norm was compared with {}'s", reference)
                                  : fmt::format("{} gradient norms were not compared", verb(without, "its", "their"))));
}

void note_predictions(const Comparison& comparison, Names& notes) {
  for (const ScheduleFigures& run : comparison.runs) {
    if (run.no_prediction)
      notes.push_back(fmt::format("'-': what {} takes cannot be predicted: {}", run.schedule, *run.no_prediction));
    if (run.prediction_note) notes.push_back(fmt::format("predicted, {}: {}.", run.schedule, *run.prediction_note));
  }
}

void note_simulations(const Comparison& comparison, Names& notes) {
  for (const ScheduleFigures& run : comparison.runs) {
    if (run.no_simulation)
      notes.push_back(fmt::format("'-': what {} ran cannot be simulated: {}", run.schedule, *run.no_simulation));
  }
}

void note_baseline(const Comparison& comparison, Names& notes) {
  if (find(comparison, comparison.options.baseline) != nullptr) return;
  notes.push_back(
      fmt::format("There are no speed-ups, since the baseline, {}, failed.{}", comparison.options.baseline,
                  comparison.reference ? fmt::format(" Differences are those from {}.", *comparison.reference) : ""));
}

}  // namespace

std::vector<std::string> comparison_notes(const Comparison& comparison) {
  Names notes;
  note_baseline(comparison, notes);
  note_intervals(comparison, notes);
  note_copies(comparison, notes);
  note_chunks(comparison, notes);
  note_absent(comparison, notes);
  note_files(comparison, notes);
  note_norms(comparison, notes);
  note_predictions(comparison, notes);
  note_simulations(comparison, notes);
  return notes;
}

}  // namespace dualpipe::compare
