#include "examples/pretrain_gpt/timeline_recorder.h"

#include <algorithm>
#include <utility>

#include "examples/pretrain_gpt/trace_recorder.h"

namespace pretrain_gpt {

TimelineRecorder::TimelineRecorder(const TrainContext& context, ForwardBackward& schedule, const MemoryReport& memory)
    : context_(context), schedule_(schedule), memory_(memory) {
  if (context.config.record_timeline > 0) {
    file_.emplace(timeline_path(context.output_dir, context.parallel.rank()));
  }
}

void TimelineRecorder::end_step(std::int64_t iteration) {
  const double now = unix_seconds();
  if (!file_ || iteration + context_.config.record_timeline <= context_.config.train_iters) {
    return;
  }
  if (std::optional<StepTrace> trace = schedule_.trace()) {
    // A curve without gradients may lie above what was held beyond all of them.
    std::int64_t peak = memory_.activations_of_step();
    for (const TracePoint& point : trace->memory) {
      peak = std::max(peak, point.bytes);
    }
    const double seconds = now - trace->began;
    steps_.push_back({iteration, seconds, *std::move(trace), peak});
  }
}

void TimelineRecorder::write(const torch::optim::Optimizer& optimizer) {
  if (!file_) {
    return;
  }
  file_->append(timeline_header_line(header(optimizer)));
  for (const TimelineStep& step : steps_) {
    file_->append(timeline_step_line(step));
  }
}

TimelineHeader TimelineRecorder::header(const torch::optim::Optimizer& optimizer) const {
  TimelineHeader header;
  header.schedule = context_.config.pipeline_schedule;
  header.rank = context_.parallel.rank();
  header.world_size = context_.parallel.world_size();
  header.pipeline_rank = context_.rank;
  header.pipeline_model_parallel_size = context_.config.pipeline_size();
  header.num_microbatches = context_.config.num_microbatches();
  for (const GptChunk* chunk : schedule_.chunks()) {
    header.num_stages = chunk->chunk().num_stages;
    header.stages.push_back(chunk->chunk().stage);
  }
  header.bytes = memory_.state(optimizer);
  return header;
}

}  // namespace pretrain_gpt
