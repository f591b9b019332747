#include "tests/bench/executor/engine.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include "plugin/runtime/loopback_transport.h"
#include "plugin/runtime/timeline_file.h"
#include "plugin/schedule/text.h"
#include "tests/bench/executor/delayed_transport.h"
#include "tests/bench/support/serve.h"

namespace dualpipe::bench {
namespace {

Work work_of(const nlohmann::json& request) {
  const auto pace = request.at("pace_ms").get<std::vector<double>>();
  return {.schedule = request.at("schedule"),
          .num_microbatches = request.at("microbatches"),
          .bytes = request.at("bytes"),
          .pace = {.forward = Milliseconds(pace.at(0)),
                   .backward_input = Milliseconds(pace.at(1)),
                   .backward_weight = Milliseconds(pace.at(2)),
                   .overlapped = Milliseconds(pace.at(3))}};
}

Milliseconds delay_of(const nlohmann::json& request) { return Milliseconds(request.value("delay_ms", 0.0)); }

struct Counts {
  std::size_t actions = 0;
  std::size_t operations = 0;
  std::size_t messages = 0;
  int peak_activations = 0;

  void add(const StepStatistics& step) {
    for (const Span& span : step.spans) operations += span.action.is_overlap() ? 2 : 1;
    actions += step.spans.size();
    messages += step.messages_sent;
    peak_activations = std::max(peak_activations, step.peak_activations);
  }
  void add(const Counts& other) {
    actions += other.actions;
    operations += other.operations;
    messages += other.messages;
    peak_activations = std::max(peak_activations, other.peak_activations);
  }
};

// Run files where the request asks for some.
Counts run_steps(const nlohmann::json& request, SleepingPipeline& pipeline) {
  Counts counts;
  std::optional<TimelineFile> timeline;
  if (request.contains("output"))
    timeline.emplace(request.at("output").get<std::string>(), timeline_header(pipeline.pipeline()));
  for (int step = 0; step < request.value("steps", 1); ++step) {
    counts.add(pipeline.step().statistics);
    if (timeline) timeline->append(step + 1, {.statistics = pipeline.statistics()});
  }
  return counts;
}

void add_counts(nlohmann::json& answer, const Counts& counts) {
  answer.update({{"actions", counts.actions},
                 {"operations", counts.operations},
                 {"messages", counts.messages},
                 {"peak_activations", counts.peak_activations}});
}

// Of the last step, [cell, start, end] in milliseconds since it began.
nlohmann::json spans_of(const StepStatistics& step) {
  nlohmann::json spans = nlohmann::json::array();
  for (const Span& span : step.spans) spans.push_back({to_string(span.action), 1e3 * span.start, 1e3 * span.end});
  return spans;
}

// Threads that begin together. The first exception, by rank, is thrown again.
template <typename Body>
void run_threads(int ranks, Body body) {
  std::vector<std::exception_ptr> errors(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

Engine::Engine(std::shared_ptr<Transport> transport) : transport_(std::move(transport)) {}

SleepingPipeline& Engine::pipeline_of(const nlohmann::json& request) {
  const Milliseconds delay = delay_of(request);
  const nlohmann::json kind{request.at("schedule"), request.at("microbatches"), request.at("bytes"),
                            request.at("pace_ms"), delay.count()};
  std::unique_ptr<SleepingPipeline>& pipeline = pipelines_[kind.dump()];
  if (!pipeline) {
    const auto over = delay.count() == 0
                          ? transport_
                          : make_delayed(transport_, std::chrono::duration_cast<std::chrono::microseconds>(delay));
    pipeline = std::make_unique<SleepingPipeline>(work_of(request), over);
  }
  return *pipeline;
}

nlohmann::json Engine::answer(const nlohmann::json& request) {
  const double ideal_ms = ideal(work_of(request), transport_->size(), delay_of(request)).count();
  if (request.value("ideal_only", false)) return {{"ideal_ms", ideal_ms}};
  SleepingPipeline& pipeline = pipeline_of(request);
  if (!request.contains("at")) {
    pipeline.rehearse();
    return {{"ready", true}};
  }
  pipeline.overshoot().clear();
  Counts counts;
  nlohmann::json answer = timed(request, [&] { counts = run_steps(request, pipeline); });
  add_counts(answer, counts);
  answer["ideal_ms"] = ideal_ms;
  answer["overshoot"] = describe(pipeline.overshoot());
  if (request.value("spans", false)) {
    answer["spans"] = spans_of(pipeline.statistics());
    answer["spans_began"] = pipeline.statistics().began;
  }
  return answer;
}

nlohmann::json answer_by_threads(const nlohmann::json& request) {
  const int ranks = request.at("ranks");
  const auto transports = make_loopback(ranks);
  std::vector<std::unique_ptr<SleepingPipeline>> pipelines(ranks);
  run_threads(ranks, [&](int rank) {
    pipelines[rank] = std::make_unique<SleepingPipeline>(work_of(request), transports[rank]);
  });
  std::vector<Counts> counts(ranks);
  nlohmann::json answer = timed({{"at", steady_seconds()}}, [&] {
    run_threads(ranks, [&](int rank) { counts[rank] = run_steps(request, *pipelines[rank]); });
  });
  for (int rank = 1; rank < ranks; ++rank) counts[0].add(counts[rank]);
  add_counts(answer, counts[0]);
  return answer;
}

}  // namespace dualpipe::bench
