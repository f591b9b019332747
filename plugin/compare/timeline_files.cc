// read_timelines() of run_files.h.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "plugin/compare/json_line.h"
#include "plugin/compare/run_files.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using compare::JsonLine;
using Json = nlohmann::json;

constexpr double kLowest = std::numeric_limits<double>::lowest();
constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::int64_t kMostStages = 1 << 16;
constexpr std::int64_t kMostMicroBatches = 1 << 24;
constexpr std::int64_t kMostIterations = std::int64_t{1} << 53;

double number_at(const JsonLine& line, const char* key, const Json& row, std::size_t column) {
  if (!row[column].is_number() || !std::isfinite(row[column].get<double>()))
    line.refuse(key, "rows of a name and numbers", row);
  return row[column].get<double>();
}

std::string name_at(const JsonLine& line, const char* key, const Json& row, std::size_t least, std::size_t most) {
  if (!row.is_array() || row.size() < least || row.size() > most || !row[0].is_string())
    line.refuse(key, "rows of a name and numbers", row);
  return row[0].get<std::string>();
}

std::pair<double, double> interval_at(const JsonLine& line, const char* key, const Json& row) {
  const std::pair interval{number_at(line, key, row, 1), number_at(line, key, row, 2)};
  if (interval.second < interval.first) line.refuse(key, "rows whose end is not before their start", row);
  return interval;
}

Action action_at(const JsonLine& line, const std::string& cell) {
  try {
    return parse_action(cell);
  } catch (const ScheduleError& error) {
    line.refuse(error.what());
  }
}

void require_in_range(const JsonLine& line, const RankTimeline& header, const Op& op) {
  if (!is_compute(op.kind) || op.stage >= header.num_stages || op.micro_batch >= header.num_microbatches)
    line.refuse("\"spans\" must be F, B, I, W or pairs of stages below " + std::to_string(header.num_stages) +
                " and micro-batches below " + std::to_string(header.num_microbatches) + ", got " + to_string(op));
}

double waited_at(const JsonLine& line, const Json& row, double duration) {
  const double waited = number_at(line, "spans", row, 3);
  if (waited < 0 || waited > duration * (1 + 1e-9))
    line.refuse("spans", "rows that waited from 0 to all of their time", row);
  return waited;
}

std::vector<Span> read_spans(const JsonLine& line, const RankTimeline& header) {
  std::vector<Span> spans;
  for (const Json& row : line.list("spans")) {
    const Action action = action_at(line, name_at(line, "spans", row, 3, 4));
    require_in_range(line, header, action.op);
    if (action.paired) require_in_range(line, header, *action.paired);
    const auto [start, end] = interval_at(line, "spans", row);
    spans.push_back({action, start, end, row.size() == 4 ? waited_at(line, row, end - start) : 0});
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  return spans;
}

std::vector<PhaseRecord> read_phases(const JsonLine& line) {
  std::vector<PhaseRecord> phases;
  for (const Json& row : line.optional_list("phases")) {
    const std::string name = name_at(line, "phases", row, 3, 4);
    const auto [start, end] = interval_at(line, "phases", row);
    const auto waited = row.size() == 4 ? std::optional(number_at(line, "phases", row, 3)) : std::nullopt;
    phases.push_back({name, start, end, waited});
  }
  return phases;
}

std::vector<MemorySample> read_memory(const JsonLine& line) {
  std::vector<MemorySample> samples;
  for (const Json& row : line.optional_list("memory")) {
    if (!row.is_array() || row.size() != 2) line.refuse("memory", "rows of seconds and bytes", row);
    samples.push_back({number_at(line, "memory", row, 0), number_at(line, "memory", row, 1)});
  }
  std::stable_sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return samples;
}

RecordedStep read_step(const JsonLine& line, const RankTimeline& header) {
  RecordedStep step;
  step.iteration = line.integer("iteration", 1, kMostIterations);
  step.began = line.number("began", kLowest);
  step.seconds = line.number("seconds", 0);
  step.spans = read_spans(line, header);
  step.phases = read_phases(line);
  step.exchange_seconds = line.optional_number("exchange_seconds", 0);
  step.exposed_seconds = line.optional_number("exposed_seconds", 0);
  if (const auto peak = line.optional_integer("peak_activations", 0, std::numeric_limits<int>::max()))
    step.peak_activations = static_cast<int>(*peak);
  step.peak_activation_bytes = line.optional_number("peak_activation_bytes", 0);
  step.memory = read_memory(line);
  return step;
}

int small(const JsonLine& line, const char* key, std::int64_t least, std::int64_t most) {
  return static_cast<int>(line.integer(key, least, most));
}

std::vector<int> read_stages(const JsonLine& line, int num_stages) {
  std::vector<int> stages;
  for (const Json& stage : line.list("stages")) {
    if (!stage.is_number_integer() || stage < 0 || stage >= num_stages)
      line.refuse("stages", "whole numbers below num_stages = " + std::to_string(num_stages), stage);
    stages.push_back(stage.get<int>());
  }
  return stages;
}

RankTimeline read_header(const JsonLine& line) {
  if (line.text("format") != "dualpipe-timeline" || line.integer("version", 1, kMostIterations) != 1)
    line.refuse("must be {\"format\":\"dualpipe-timeline\",\"version\":1,...}, got format \"" + line.text("format") +
                "\" of another kind or version");
  RankTimeline header;
  header.schedule = line.text("schedule");
  header.world_size = small(line, "world_size", 1, kMostRanks);
  header.rank = small(line, "rank", 0, header.world_size - 1);
  header.pipeline_model_parallel_size = small(line, "pipeline_model_parallel_size", 1, header.world_size);
  header.pipeline_rank = small(line, "pipeline_rank", 0, header.pipeline_model_parallel_size - 1);
  header.num_microbatches = small(line, "num_microbatches", 1, kMostMicroBatches);
  header.num_stages = small(line, "num_stages", 1, kMostStages);
  header.stages = read_stages(line, header.num_stages);
  header.parameter_bytes = line.optional_number("parameter_bytes", 0);
  header.gradient_bytes = line.optional_number("gradient_bytes", 0);
  header.optimizer_bytes = line.optional_number("optimizer_bytes", 0);
  return header;
}

RankTimeline read_timeline(const std::filesystem::path& file, int rank) {
  const std::vector<JsonLine> lines = compare::read_json_lines(file);
  RankTimeline timeline = read_header(lines.front());
  if (timeline.rank != rank)
    lines.front().refuse("\"rank\" must be that of the file's name = " + std::to_string(rank) + ", got " +
                         std::to_string(timeline.rank));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    timeline.steps.push_back(read_step(lines[i], timeline));
    if (i > 1 && timeline.steps[i - 1].iteration <= timeline.steps[i - 2].iteration)
      lines[i].refuse(
          "\"iteration\" must be above that of the line before = " + std::to_string(timeline.steps[i - 2].iteration) +
          ", got " + std::to_string(timeline.steps[i - 1].iteration));
  }
  return timeline;
}

std::optional<int> rank_of_name(std::string_view name) {
  constexpr std::string_view kBefore = "timeline_rank";
  constexpr std::string_view kAfter = ".jsonl";
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter) || name.size() <= kBefore.size() + kAfter.size())
    return std::nullopt;
  name = name.substr(kBefore.size(), name.size() - kBefore.size() - kAfter.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  return error == std::errc() && end == name.data() + name.size() && rank >= 0 ? std::optional(rank) : std::nullopt;
}

std::map<int, std::filesystem::path> find_files(const std::filesystem::path& folder) {
  std::map<int, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (const auto rank = rank_of_name(entry.path().filename().string())) files.emplace(*rank, entry.path());
  }
  return files;
}

void require_same(const std::filesystem::path& file, const char* key, std::int64_t first, std::int64_t given) {
  if (given != first)
    throw ScheduleError(file.string() + ":1", "\"" + std::string(key) + "\" must be rank 0's = " +
                                                  std::to_string(first) + ", got " + std::to_string(given));
}

void require_one_run(const std::filesystem::path& file, const RankTimeline& first, const RankTimeline& given) {
  require_same(file, "world_size", first.world_size, given.world_size);
  require_same(file, "pipeline_model_parallel_size", first.pipeline_model_parallel_size,
               given.pipeline_model_parallel_size);
  require_same(file, "num_microbatches", first.num_microbatches, given.num_microbatches);
  require_same(file, "num_stages", first.num_stages, given.num_stages);
  if (given.schedule != first.schedule)
    throw ScheduleError(file.string() + ":1",
                        "\"schedule\" must be rank 0's = \"" + first.schedule + "\", got \"" + given.schedule + "\"");
}

// A number in a header must not cost tables that nothing in the files is worth.
void require_stages_held(const std::filesystem::path& file, const std::vector<RankTimeline>& ranks) {
  std::size_t held = 0;
  for (const RankTimeline& rank : ranks) held += rank.stages.size();
  if (static_cast<std::size_t>(ranks.front().num_stages) > held)
    throw ScheduleError(file.string() + ":1",
                        "\"num_stages\" must be at most the number of \"stages\" of all ranks = " +
                            std::to_string(held) + ", got " + std::to_string(ranks.front().num_stages));
}

void require_whole_pipelines(const std::filesystem::path& folder, const std::vector<RankTimeline>& ranks) {
  const int size = ranks.front().pipeline_model_parallel_size;
  std::vector<int> count(size, 0);
  for (const RankTimeline& rank : ranks) ++count[rank.pipeline_rank];
  const auto [least, most] = std::minmax_element(count.begin(), count.end());
  if (*least != *most)
    throw ScheduleError(folder.string(), "timeline files must name each pipeline_rank below " + std::to_string(size) +
                                             " equally often, got one " + std::to_string(*least) +
                                             " times and another " + std::to_string(*most) + " times");
}

}  // namespace

std::vector<RankTimeline> read_timelines(const std::filesystem::path& folder) {
  const std::map<int, std::filesystem::path> files = find_files(folder);
  std::vector<RankTimeline> ranks;
  for (const auto& [rank, file] : files) {
    if (rank != static_cast<int>(ranks.size())) break;
    ranks.push_back(read_timeline(file, rank));
    require_one_run(file, ranks.front(), ranks.back());
  }
  if (files.empty()) return ranks;
  if (ranks.empty() || static_cast<int>(ranks.size()) != ranks.front().world_size)
    throw ScheduleError((folder / ("timeline_rank" + std::to_string(ranks.size()) + ".jsonl")).string(),
                        "must be there beside the other ranks' files, got none");
  require_stages_held(files.begin()->second, ranks);
  require_whole_pipelines(folder, ranks);
  return ranks;
}

}  // namespace dualpipe
